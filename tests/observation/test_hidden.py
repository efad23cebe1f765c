"""What a module outside attention returns differs for equal inputs: the change is measured, proven,
put in words and placed; what no change explains claims nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from conftest import tiny_llama
from probing import finding, loaded
from torch import Tensor, nn

from attncheck.core.finding import Diagnosis, Location
from attncheck.diagnosis.diagnose import diagnose
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.subject import Subject
from attncheck.observation.deviation import Deviation
from attncheck.observation.hidden import changed_output, hidden_modules, looked_up
from attncheck.observation.names import named
from attncheck.observation.summary import Extent, grouped_parts
from attncheck.observation.words import sentence, worded

MLP = "model.layers.2.mlp"


@contextmanager
def changed(subject: Subject, name: str, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """One module changes what it returns in steps of one token; the empty name is the model."""

    def hook(module: Any, args: Any, output: Any) -> Any:
        if isinstance(output, Tensor):
            return change(output) if output.shape[1] == 1 else output
        if output.logits.shape[1] == 1:
            output.logits = change(output.logits)
        return output

    module = subject.model.get_submodule(name)
    with module.register_forward_hook(hook), subject.passes.under("changed", False):
        yield


def explained(name: str, change: Callable[[Tensor], Tensor]) -> tuple[Diagnosis, Location | None]:
    subject = loaded("builtin:gqa")
    with changed(subject, name, change):
        found = diagnose(subject, finding(subject, "decode-paths"))
    assert found.diagnosis is not None
    return found.diagnosis, found.location


def in_bfloat16(states: Tensor) -> Tensor:
    significand, exponent = torch.frexp(states)
    return torch.ldexp((significand * 2**8).round() / 2**8, exponent)


@pytest.mark.parametrize(
    ("change", "how", "words"),
    [
        (torch.zeros_like, "zero", f"Outputs of {MLP} are zero, in layer 2"),
        (lambda states: states * 1.25, "scaled", f"Outputs of {MLP} are multiplied by 1.25"),
        (in_bfloat16, "rounded", f"Outputs of {MLP} are rounded to bfloat16"),
    ],
)
def test_a_changed_module_is_measured(
    change: Callable[[Tensor], Tensor], how: str, words: str
) -> None:
    found, place = explained(MLP, change)
    assert (found.how, found.fault) == ("measured", "")
    (part,) = found.parts
    assert (part.what, part.how, part.layers, part.when) == ("hidden", how, (2,), ("step",))
    assert found.sentence.startswith(words)
    assert place is not None
    assert place.module == MLP


def test_changed_logits_have_a_place() -> None:
    found, place = explained("", lambda logits: logits * 2)
    (part,) = found.parts
    assert (found.how, part.what, part.how, part.amount) == ("measured", "logits", "scaled", 2.0)
    assert place is not None
    assert place.module == "lm_head"


def test_another_function_is_told_by_its_code() -> None:
    found, place = explained(MLP, torch.tanh)
    assert (found.how, found.fault) == ("measured", "")
    assert found.sentence.startswith("In model.layers.2 `residual + hidden_states`")
    assert "what goes in was made by `change(output)`" in found.sentence
    assert "With the values of one forward there the logits are right, to " in found.sentence
    assert place is not None
    assert place.module == MLP
    assert "modeling_llama.py:" in place.source


def test_a_table_of_positions_without_weights_is_compared() -> None:
    model, table = nn.Module(), nn.Module()
    table.register_buffer("weights", torch.zeros(8, 4))
    model.embed_positions, model.norm, model.angles = table, nn.LayerNorm(4), nn.Module()
    model.angles.register_buffer("inv_freq", torch.zeros(4))
    assert list(hidden_modules(model)) == ["embed_positions", "norm"]


@pytest.mark.parametrize(
    ("place", "words", "family"),
    [
        (lambda at, start: at - start, "of positions that restart at 0 in each call", "restart"),
        (lambda at, start: start, "of the first position of their call", "frozen"),
    ],
)
def test_positions_that_follow_a_rule_are_told(
    place: Callable[[int, int], int], words: str, family: str
) -> None:
    extent = Extent(layers=frozenset({0}), rows=1, length=9, starts=(0, 2, 5))
    members = [
        Deviation(
            what="hidden",
            how="other token",
            layer=-1,
            module="embed_positions",
            row=0,
            at=at,
            start=start,
            when="chunk",
            amount=float(place(at, start) - at),
            source=(0, 0, place(at, start)),
        )
        for at, start in ((2, 2), (3, 2), (4, 2), (5, 5), (6, 5), (7, 5), (8, 5))
        if place(at, start) != at
    ]
    groups = worded(grouped_parts(members, extent), extent)
    assert f" are those {words}" in sentence(groups)
    assert named(groups, extent) == ((), f"position-{family}")


def test_vectors_of_the_only_call_that_have_no_angle_are_not_rotated() -> None:
    extent = Extent(layers=frozenset({0}), rows=1, length=4, starts=(0,))
    members = [
        Deviation(
            what="queries",
            how="rotated",
            layer=0,
            row=0,
            at=at,
            amount=float(-at),
            when="prefill",
        )
        for at in range(1, 4)
    ]
    groups = worded(grouped_parts(members, extent), extent)
    assert sentence(groups) == "queries at 1..3 are not rotated"
    assert named(groups, extent) == ((), "position-offset")


def test_an_unexplained_vector_says_in_which_channels_it_differs() -> None:
    extent = Extent(layers=frozenset({0}), rows=1, length=4, starts=(0,))
    members = [
        Deviation(what="values", how="another function", layer=0, row=0, at=at, channels=(2, 3, 6))
        for at in range(4)
    ]
    said = sentence(worded(grouped_parts(members, extent), extent))
    assert said.endswith("are no vectors of the trusted path in channels 2..3, 6")


def test_positions_beyond_the_row_are_rows_of_their_table() -> None:
    table, spec = nn.Embedding(9, 4), ForwardSpec(((1, 2, 3),), chunks=(2, 1))
    right_BTW = table(torch.arange(2, 5))[None].detach()
    observed_BTW = right_BTW.clone()
    observed_BTW[0, 2] = table.weight[8].detach()
    event, states = ("wpe", "out"), (observed_BTW, right_BTW)
    found = looked_up(event, table, states, spec, None, 1e-6)
    assert found is not None
    (moved,) = found.deviations
    assert (moved.at, moved.amount, moved.source, moved.when) == (2, 4.0, (0, 0, 6), "step")
    observed_BTW[0, 2] += 0.5
    assert looked_up(event, table, states, spec, None, 1e-6) is None


@pytest.mark.parametrize(("entering", "noun"), [(False, "outputs"), (True, "inputs")])
def test_what_enters_a_module_is_told_from_what_leaves_it(entering: bool, noun: str) -> None:
    extent = Extent(layers=frozenset({0}), rows=1, length=1, starts=(0,))
    zero = Deviation(
        what="hidden", how="zero", layer=0, row=0, at=0, module="norm", entering=entering
    )
    groups = worded(grouped_parts([zero], extent), extent)
    assert sentence(groups) == f"{noun} of norm are zero"


def test_what_stands_beyond_the_edge_of_a_shifted_sequence_explains_its_first_token() -> None:
    right_BTW = torch.randn(1, 6, 8, dtype=torch.float64)
    before_BTW = torch.randn(1, 1, 8, dtype=torch.float64)
    seen_BTW = torch.cat([before_BTW, right_BTW[:, :-1]], 1)
    spec = ForwardSpec((tuple(range(6)),))
    found = changed_output(("lm_head", "out"), "logits", (seen_BTW, right_BTW), spec, None, 1e-12)
    assert found is not None
    assert not found.opaque
    assert {(each.how, each.amount) for each in found.deviations} == {("other token", -1.0)}


def test_one_strange_token_within_a_sequence_stays_unexplained() -> None:
    right_BTW = torch.randn(1, 6, 8, dtype=torch.float64)
    seen_BTW = torch.cat([right_BTW[:, :1], right_BTW[:, :-1]], 1)
    seen_BTW[:, 3] = torch.randn(8, dtype=torch.float64)
    spec = ForwardSpec((tuple(range(6)),))
    found = changed_output(("lm_head", "out"), "logits", (seen_BTW, right_BTW), spec, None, 1e-12)
    assert found is not None
    assert found.opaque


def test_steps_that_forget_the_bias_of_a_projection_are_named() -> None:
    model = tiny_llama(attention_bias=True)
    projection = model.model.layers[1].self_attn.v_proj
    torch.nn.init.normal_(projection.bias)
    usual = projection.forward

    def forward(states: Any) -> Any:
        steps = states.shape[1] == 1
        return states @ projection.weight.T if steps else usual(states)

    projection.forward = forward
    subject = Subject.of(model, "llama", dtype="float64")
    found = diagnose(subject, finding(subject, "decode-paths"))
    assert found.diagnosis is not None
    assert found.diagnosis.how == "measured"
    assert found.diagnosis.sentence.startswith(
        "Outputs of model.layers.1.self_attn.v_proj lack the bias of that module, in layer 1, in "
        "calls of one token on a cache."
    )
