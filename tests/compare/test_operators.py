"""Models that are no decoder with softmax attention: named operator by operator."""

from __future__ import annotations

import pytest
import torch
from porting.foreign import foreign

from attncheck.compare.naming import Explanation
from attncheck.compare.operators import explain, program_of
from attncheck.compare.program.record import recorded
from attncheck.compare.sides import compare_subjects
from attncheck.core.errors import Unsupported
from attncheck.model.subject import Subject
from attncheck.targets.functions import as_module


def sides(family: str, fault: str = "") -> tuple[Subject, Subject]:
    ours, theirs = foreign(family, fault)
    return Subject.of(ours, family), Subject.of(as_module(theirs), "port")


def explained(family: str, fault: str) -> Explanation:
    one, other = sides(family, fault)
    one.forward_adapter.share_with(other.forward_adapter)
    row = one.inputs.row[:21]
    return explain(one, other, (row, one.inputs.other(row, salt=31)))


@pytest.mark.parametrize("family", ["mamba", "t5"])
def test_a_correct_port_is_rounding(family: str) -> None:
    assert compare_subjects(*sides(family), quick=True).verdict == "rounding"


@pytest.mark.parametrize(
    ("family", "fault", "name", "words", "layers"),
    [
        (
            "mamba",
            "conv-flipped",
            "kernel-flipped",
            "the kernel of the convolution turned round in backbone.layers.0.mixer",
            (0, 1, 2),
        ),
        (
            "mamba",
            "B-C-swapped",
            "parts-exchanged",
            "parts 1 and 2 of a split exchanged in backbone.layers.0.mixer",
            (0, 1, 2),
        ),
        (
            "mamba",
            "conv-bias-l1",
            "bias-missing",
            "no bias of the convolution in backbone.layers.1.mixer",
            (1,),
        ),
        (
            "mamba",
            "residual-of-norm",
            "residual",
            "the add in backbone.layers.0 reads the output of backbone.layers.0.norm in the place of "
            "the output of backbone.embeddings",
            (0, 1, 2),
        ),
        (
            "t5",
            "uni-in-encoder",
            "relative-bias",
            "other rows of encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight in "
            "encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
            (0,),
        ),
        (
            "t5",
            "decoder-not-causal",
            "causal-mask-missing",
            "no mask in decoder",
            (),
        ),
        (
            "t5",
            "ids-shifted",
            "position-offset",
            "rows that lie -1 places away of shared.weight in decoder.embed_tokens",
            (),
        ),
        (
            "bart",
            "no-emb-norm-enc",
            "norm-missing",
            "no model.encoder.layernorm_embedding",
            (),
        ),
        (
            "lfm2",
            "silu-on-conv",
            "activation",
            "SiLU of the convolution in model.layers.0.conv, which is read as it is by "
            "model.layers.0.conv",
            (0, 2),
        ),
        (
            "t5",
            "cross-o-l2",
            "weight-exchanged",
            "decoder.block.2.layer.1.EncDecAttention.o.weight is "
            "decoder.block.1.layer.1.EncDecAttention.o.weight",
            (2,),
        ),
    ],
)
def test_a_fault_is_named_with_its_layers(
    family: str, fault: str, name: str, words: str, layers: tuple[int, ...]
) -> None:
    (found,) = explained(family, fault).faults
    assert (found.name, found.layers) == (name, layers)
    assert f": {words} (putting it right makes all logits equal to " in found.sentence


def test_a_program_gives_the_logits_that_it_was_recorded_from() -> None:
    one, _ = sides("mamba")
    with one.at("float64") as view:
        program = program_of(view, (view.inputs.row,))
        *_, (_, fresh) = program.rerun({0: program.ops[0]})
    assert torch.equal(fresh[program.logits], program.values[program.logits])


def test_operators_that_write_in_place_give_new_values() -> None:
    class Adds(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x * 2
            y += 1
            return y

    class Writes(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x * 2
            y[0] += 1
            return y

    given = torch.ones(3)
    with recorded(Adds()) as found:
        Adds()(given)
    doubled, added = (found.program.values[slot] for slot in (0, 1))
    assert (doubled.tolist(), added.tolist()) == ([2.0] * 3, [3.0] * 3)
    with pytest.raises(Unsupported, match="writes into a part"), recorded(Writes()):
        Writes()(torch.ones(3))
