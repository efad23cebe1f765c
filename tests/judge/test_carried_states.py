"""Queries, keys and values that a kernel gets, against what the layer's projections returned."""

from __future__ import annotations

import pytest
from conftest import tiny_llama

from attncheck.core.measurement import Measurement, verdict_of
from attncheck.core.verdict import Verdict
from attncheck.judge.heads import projection_cases
from attncheck.model.subject import Subject
from attncheck.run.random_faults.inject import Injector
from attncheck.run.random_faults.parts import parse
from attncheck.run.random_faults.sites import sites_of


def _case(subject: Subject, what: str = "values") -> Measurement:
    name = f"{what} of 3 layers against their projection"
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
