"""Ports in other people's styles of code: read, compared and named whatever they are made of."""

from __future__ import annotations

import pytest
from porting.foreign import STYLES, foreign, restyled

from attncheck.compare.sides import TwoSides, compare_subjects
from attncheck.model.subject import Subject
from attncheck.targets.functions import as_module


def compared(family: str, fault: str = "", *, restyle: bool = False) -> TwoSides:
    ours, theirs = restyled(family) if restyle else foreign(family, fault)
    one, other = Subject.of(ours, family), Subject.of(as_module(theirs), "port")
    return compare_subjects(one, other, quick=True)


@pytest.mark.parametrize("family", ["bert", "deepseek_v3", "gptj", "olmo2"])
def test_a_correct_port_is_rounding(family: str) -> None:
    assert compared(family).verdict == "rounding"


@pytest.mark.parametrize("family", sorted(STYLES))
def test_a_correct_port_in_another_style_is_rounding(family: str) -> None:
    assert compared(family, restyle=True).verdict in ("rounding", "identical")


def test_norms_after_sums_are_called_so() -> None:
    found = compared("roberta", "ln-before-residual-l1")
    assert found.explanation is not None
    (fault,) = found.explanation.faults
    want = "norm before the attention's sum where the reference has it after the sum"
    assert want in fault.sentence


@pytest.mark.parametrize(
    ("family", "fault", "name", "layers"),
    [
        ("deepseek_v3", "groups-ignored", "router-groups", (1, 2)),
        ("olmo2", "wo-transposed", "weight-transposed", (1,)),
        ("starcoder2", "eps", "norm-eps", (0, 1, 2)),
        ("gpt_neox", "qkv-by-blocks", "qkv-order", (0, 1, 2)),
        ("olmo2", "qk-norm-per-head", "qk-norm", (0, 1, 2)),
        ("gemma2", "window-off-by-one", "window-off-by-one", (0, 2)),
        ("bloom", "alibi-missing", "alibi-missing", (0, 1, 2)),
        ("bloom", "slopes-pow2", "alibi-slopes", (0, 1, 2)),
        ("gpt_oss", "swiglu-halves", "gate-up-layout", (0, 1, 2)),
        ("granite", "residual-attn-only", "residual-scale", (0, 1, 2)),
        ("smollm3", "v-head-order", "rows-permuted", (0,)),
        ("smollm3", "nope-rotated", "rotary-unexpected", (2,)),
        ("falcon", "one-norm", "norm-shared", (0, 1, 2)),
        ("falcon", "kv-tiled-l1", "kv-groups-tiled", (1,)),
        ("gptj", "mlp-reads-x", "norm-missing", (0, 1, 2)),
        ("bert", "causal", "causal-mask-unexpected", (0, 1, 2)),
        ("bert", "pre-norm", "norm-placement", (0, 1, 2)),
        ("bert", "token-type-missing", "token-type-missing", ()),
        ("opt", "k-bias-in-v-l1", "bias-exchanged", (1,)),
        ("phi3", "no-second-residual-l1", "residual", (1,)),
    ],
)
def test_a_fault_is_named_in_all_layers_that_have_it(
    family: str, fault: str, name: str, layers: tuple[int, ...]
) -> None:
    found = compared(family, fault)
    assert found.explanation is not None
    named = [(each.name, each.layers) for each in found.explanation.faults]
    assert (found.verdict, named[0]) == ("different", (name, layers))
    assert {each for each, _ in named} == {name}


def test_values_are_aligned_with_the_modules_that_hold_them() -> None:
    ours, theirs = foreign("falcon")
    one, other = Subject.of(ours, "falcon"), Subject.of(theirs, "port")
    aligned = dict(compare_subjects(one, other, quick=True, aligned=True).alignment)
    assert aligned["layer 0, attention, query"] == "blocks.0.to_q"
    assert aligned["layer 2, feed-forward block, output"] == "blocks.2.w2"
    assert compare_subjects(one, other, quick=True).alignment == ()
