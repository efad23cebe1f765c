"""Ports by hand: correct ones are rounding, one fault is named with its sentence, two are both."""

from __future__ import annotations

import pytest
import torch
from porting.fused import FusedPort
from porting.mistakes import flawed
from porting.recipe import recipe_of
from porting.references import reference
from porting.unfused import UnfusedPort
from torch import nn

from attncheck.compare.naming import Explanation, explain
from attncheck.model.subject import Subject

ROWS = tuple(
    tuple(row)
    for row in torch.randint(3, 96, (2, 26), generator=torch.Generator().manual_seed(1)).tolist()
)


def explained(
    family: str,
    *flaws: str,
    style: type[nn.Module] = UnfusedPort,
    layer: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> Explanation:
    recipe = recipe_of(reference(family))
    for flaw in flaws:
        recipe = flawed(recipe, flaw, layer)
    port = style(recipe).to(dtype)
    return explain(Subject.of(reference(family).to(dtype), family), Subject.of(port, "port"), ROWS)


@pytest.mark.parametrize("style", [UnfusedPort, FusedPort])
@pytest.mark.parametrize("family", ["gemma2", "llama", "mixtral", "phi"])
def test_a_correct_port_is_rounding(family: str, style: type[nn.Module]) -> None:
    found = explained(family, style=style)
    assert (found.rounding, found.faults) == (True, ())


def test_a_correct_port_in_bfloat16_is_rounding() -> None:
    assert explained("qwen2", dtype=torch.bfloat16).rounding


def test_a_scale_folded_into_weights_before_a_cast_is_rounding() -> None:
    assert explained("gemma2", style=FusedPort, dtype=torch.bfloat16).rounding
    (fault,) = explained("gemma2", "causal", style=FusedPort, dtype=torch.bfloat16).faults
    assert fault.name == "causal-mask-missing"


def test_the_sentence_says_what_both_sides_have_and_the_proof() -> None:
    (fault,) = explained("llama", "rotary-base").faults
    what, _, proof = fault.sentence.partition(" (")
    assert what == (
        "layer 0 attention, as in all 3 layers: rotary base 10000 where the reference has 500000"
    )
    assert proof.startswith("putting 500000 in makes all logits equal to ")
    assert (fault.name, fault.layer, fault.layers) == ("rotary-base", 0, (0, 1, 2))
    assert fault.module == "model.layers.0.self_attn"
    assert fault.other_module == "stack.0.attend.to_out"


@pytest.mark.parametrize(
    ("family", "flaw", "name", "style"),
    [
        ("gemma2", "post-norm-missing", "norm-missing", UnfusedPort),
        ("qwen2", "bias-missing", "bias-missing", FusedPort),
        ("mixtral", "router-count", "router-experts", UnfusedPort),
        ("gpt2", "activation-exact", "activation", FusedPort),
        ("mistral", "window-off", "window-off-by-one", UnfusedPort),
        ("qwen3", "qk-norm", "qk-norm", FusedPort),
        ("llama", "transposed", "weight-transposed", UnfusedPort),
    ],
)
def test_a_fault_in_one_layer_is_named_and_placed(
    family: str, flaw: str, name: str, style: type[nn.Module]
) -> None:
    (fault,) = explained(family, flaw, style=style, layer=1).faults
    assert (fault.name, fault.layers) == (name, (1,))


def test_numbers_that_no_list_holds_are_measured() -> None:
    (fault,) = explained("qwen2", "rotary-base-odd").faults
    assert (fault.name, "rotary base 1.3e+06" in fault.sentence) == ("rotary-base", True)


def test_two_faults_are_both_named() -> None:
    found = explained("llama", "score-scale", "gate-up")
    assert sorted(each.name for each in found.faults) == ["gate-up-exchanged", "softmax-scale"]


def test_without_a_proof_there_is_no_name() -> None:
    port = UnfusedPort(recipe_of(reference("llama")))
    port.stack[1].feed.register_forward_hook(lambda module, args, output: output.sin())
    found = explain(Subject.of(reference("llama"), "llama"), Subject.of(port, "port"), ROWS)
    assert (found.faults, found.layer) == ((), 1)
    assert found.reason.startswith("no change that is known makes layer 1, layer output")
    assert found.reason.endswith(", so that nothing else differs")


def test_a_reference_that_cannot_be_written_out_is_said() -> None:
    one = nn.Sequential(nn.Embedding(40, 8), nn.Linear(8, 40))
    found = explain(Subject.of(one, "one"), Subject.of(one, "other"), ROWS)
    assert found.unreadable
    assert "cannot be written out" in found.reason
