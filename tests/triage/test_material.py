"""Sequences and layers that are cut for a while come back whole."""

from __future__ import annotations

from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.subject import Subject
from attncheck.triage.material import depth, shallower, shorter


def test_layers_and_rows_come_back_whole(subject: Subject) -> None:
    before, row = subject.logits(ForwardSpec(subject.inputs.tokens)), subject.inputs.row
    with shallower(subject, 1):
        short = shorter(subject, 5)
        assert depth(short) == 1
        assert short.inputs.row == row[:5]
        assert not before[:, :5].equal(short.logits(ForwardSpec(short.inputs.tokens)))
    assert (depth(subject), subject.inputs.row) == (4, row)
    assert before.equal(subject.logits(ForwardSpec(subject.inputs.tokens)))
