"""Queries, keys and values that a kernel gets, against what the layer's projections returned."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from conftest import tiny_llama
from torch import Tensor

from attncheck.core.measurement import Measurement, verdict_of
from attncheck.core.verdict import Verdict
from attncheck.judge.heads import projection_cases
from attncheck.model.subject import Subject
from attncheck.run.random_faults.inject import Injector
from attncheck.run.random_faults.parts import parse
from attncheck.run.random_faults.sites import sites_of


def _case(subject: Subject, what: str = "values", source: str = "projection") -> Measurement:
    name = f"{what} of 3 layers against their {source}"
    return next(each for each in projection_cases(subject) if each.name == name)


def _with(subject: Subject, fault: str, what: str = "values") -> Measurement:
    """The case with a composed fault."""
    with Injector(sites_of(subject), parse(fault)).injected():
        return _case(subject, what)


@pytest.fixture(scope="module")
def subject() -> Subject:
    return Subject.of(tiny_llama(num_hidden_layers=3), "llama", dtype="float64")


@pytest.mark.parametrize("what", ["queries", "keys", "values"])
def test_healthy_states_are_those_of_their_projection(subject: Subject, what: str) -> None:
    found = _case(subject, what)
    assert verdict_of(found) is Verdict.PASS
    assert found.positions > 0


def test_values_times_one_number_throughout_may_be_meant(subject: Subject) -> None:
    assert verdict_of(_with(subject, "what=values,how=scale:1.25")) is Verdict.PASS


def test_a_factor_in_one_layer_is_named_with_layer_and_heads(subject: Subject) -> None:
    found = _with(subject, "what=values,how=scale:1.25,at=model.layers.1.self_attn")
    assert verdict_of(found) is Verdict.FAIL
    assert found.note == (
        "model.layers.1.self_attn: values are those of `v_proj` times 1.25, unlike most"
    )
    (part,) = found.cause.parts
    assert (part.what, part.how, part.layers) == ("values", "scaled", (1,))
    assert part.amount == pytest.approx(1.25)


@pytest.mark.parametrize(("heads", "whose"), [("", "values"), (",heads=1", "values of head 1")])
def test_values_of_zeros_are_not_what_their_projection_returned(
    subject: Subject, heads: str, whose: str
) -> None:
    found = _with(subject, f"what=values,how=zero,at=model.layers.1.self_attn{heads}")
    assert verdict_of(found) is Verdict.FAIL
    assert found.note == (
        f"model.layers.1.self_attn: {whose} are zero, which their projection is not"
    )
    (part,) = found.cause.parts
    assert (part.what, part.how, part.layers) == ("values", "zero", (1,))


def test_a_projection_that_returns_zeros_may_be_meant() -> None:
    model = tiny_llama(num_hidden_layers=3)
    torch.nn.init.zeros_(model.model.layers[1].self_attn.v_proj.weight)
    found = [
        each
        for each in projection_cases(Subject.of(model, "blank", dtype="float64"))
        if each.name.startswith("values of")
    ]
    assert [verdict_of(each) for each in found] == [Verdict.PASS]


def test_values_of_other_tokens_are_named_in_every_layer(subject: Subject) -> None:
    found = _with(subject, "what=values,how=slot:1")
    assert verdict_of(found) is Verdict.FAIL
    assert found.note == "model.layers.0.self_attn: values are those of the token 1 before"
    (part,) = found.cause.parts
    assert (part.how, part.amount) == ("other token", -1.0)


@pytest.mark.parametrize("what", ["queries", "keys"])
@pytest.mark.parametrize("layer", [0, 2])
def test_one_head_times_another_factor_is_named(subject: Subject, what: str, layer: int) -> None:
    fault = f"what={what},how=scale:1.001,heads=1,at=model.layers.{layer}.self_attn"
    found = _with(subject, fault, what)
    assert verdict_of(found) is Verdict.FAIL
    stage = {"queries": "q_proj", "keys": "k_proj"}[what]
    assert found.note == (
        f"model.layers.{layer}.self_attn: {what} of head 1 are those of `{stage}` "
        "times 1.001, unlike most"
    )
    (part,) = found.cause.parts
    assert (part.what, part.how, part.layers, part.heads) == (what, "scaled", (layer,), (1,))


def test_a_factor_on_all_queries_is_left_to_the_scale(subject: Subject) -> None:
    fault = "what=queries,how=scale:1.25,at=model.layers.1.self_attn"
    assert verdict_of(_with(subject, fault, "queries")) is Verdict.PASS


def test_a_head_of_keys_of_other_tokens_is_named(subject: Subject) -> None:
    found = _with(subject, "what=keys,how=slot:-1,heads=0,at=model.layers.1.self_attn", "keys")
    assert found.note == "model.layers.1.self_attn: keys of head 0 are those of the token 1 after"


def _first_head(by: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Changes the first of four heads of what goes on, (B, T, W)."""
    return lambda states_BTW: torch.cat([by(states_BTW[..., :8]), states_BTW[..., 8:]], -1)


OUTPUTS: list[tuple[Callable[[Tensor], Tensor], str]] = [
    (lambda states_BTW: states_BTW, ""),
    (
        _first_head(lambda head_BTD: 1.1 * head_BTD),
        "outputs of head 0 go on times 1.1, unlike most",
    ),
    (lambda states_BTW: 0.5 * states_BTW, "outputs go on times 0.5, unlike most"),
    (
        _first_head(lambda head_BTD: head_BTD.roll(1, 1)),
        "outputs of head 0 go on as those of the token 1 before",
    ),
]


@pytest.mark.parametrize(("change", "words"), OUTPUTS)
def test_what_the_kernel_returns_is_what_goes_on(
    change: Callable[[Tensor], Tensor], words: str
) -> None:
    model = tiny_llama(num_hidden_layers=3)
    projection = model.model.layers[1].self_attn.o_proj
    projection.register_forward_pre_hook(lambda module, args: (change(args[0]),))
    found = _case(Subject.of(model, "llama", dtype="float64"), "outputs", "kernel")
    assert verdict_of(found) is (Verdict.FAIL if words else Verdict.PASS)
    assert found.positions == 12
    assert found.note == (f"model.layers.1.self_attn: {words}" if words else "")


@pytest.mark.parametrize(("layers", "wrong"), [({0, 1, 2}, 0), ({2}, 4)])
def test_heads_may_go_on_in_another_order_in_all_layers(layers: set[int], wrong: int) -> None:
    model = tiny_llama(num_hidden_layers=3)
    for number in layers:
        model.model.layers[number].self_attn.o_proj.register_forward_pre_hook(
            lambda module, args: (args[0].unflatten(-1, (4, 8)).flip(-2).flatten(-2),)
        )
    subject = Subject.of(model, "llama", dtype="float64")
    cases = {each.name: each for each in projection_cases(subject)}
    found = cases["order of heads of 3 layers"]
    assert found.value == wrong  # type: ignore[attr-defined]
    order = "model.layers.2.self_attn: heads of the kernel's output go on in the order 3 2 1 0"
    assert found.note == (order if wrong else "")
