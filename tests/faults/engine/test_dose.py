"""The smallest dose of a fault: one place keeps the fault, all others are healthy."""

from __future__ import annotations

import pytest
import torch

from attncheck.core.errors import CannotInject
from attncheck.faults.registry import fault
from attncheck.model.caches import key_values
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.subject import Subject


def context(subject: Subject) -> list[torch.Tensor]:
    """The output of every attention call of a plain forward, (B, T, H, D)."""
    return subject.record_calls(subject.inputs.tokens, lambda call: call.run()[0])


def test_one_head_of_one_layer_at_one_position_reads_the_next_key(subject: Subject) -> None:
    healthy = context(subject)
    with fault("mask-off-by-one").injected_once(subject):
        faulty = context(subject)
    differ = [(a != b).any(-1)[0] for a, b in zip(healthy, faulty, strict=True)]
    assert int(differ[0].sum()) == 1
    with fault("mask-off-by-one").injected(subject):
        everywhere = context(subject)
    assert int((everywhere[0] != healthy[0]).any(-1).sum()) == 4 * (subject.inputs.length - 1)


def test_one_slot_of_the_cache_is_wrong(subject: Subject) -> None:
    half = subject.inputs.length // 2
    spec = ForwardSpec(subject.inputs.tokens, chunks=(half, subject.inputs.length - half))
    healthy = [each.tensor for each in key_values(subject.passes.cache(spec))]
    with fault("cache-wrong-slot").injected_once(subject):
        faulty = [each.tensor for each in key_values(subject.passes.cache(spec))]
    first = [
        int((a != b).any(-1).any(1).sum()) for a, b in zip(healthy[:2], faulty[:2], strict=True)
    ]
    assert first == [0, 1], "of the first layer's keys no slot, of its values one"


def test_a_fault_of_whole_calls_has_no_smaller_dose(subject: Subject) -> None:
    with (
        pytest.raises(CannotInject, match="no smaller dose"),
        fault("position-restart").injected_once(subject),
    ):
        pass


def test_nothing_is_left_behind(subject: Subject) -> None:
    before = subject.logits(ForwardSpec(subject.inputs.tokens)).clone()
    with fault("leak-outside-attention").injected_once(subject):
        moved = subject.logits(ForwardSpec(subject.inputs.tokens))
        assert (moved != before).any(-1).sum() == subject.inputs.length - subject.inputs.length // 2
    assert torch.equal(subject.logits(ForwardSpec(subject.inputs.tokens)), before)
