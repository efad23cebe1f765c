"""Two recordings: the same to the bit, rounding, or something else, and where it starts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attncheck.compare.calls import CHUNKED, PADDED, PLAIN
from attncheck.compare.divergence import compare
from attncheck.compare.record import record
from attncheck.core.settings import Settings
from attncheck.faults import registry as faults
from attncheck.model.subject import Subject
from attncheck.targets.load import load


def test_a_model_is_identical_to_itself_in_every_call_pattern(subject: Subject) -> None:
    found = compare(record(subject), record(load("builtin:gqa", Settings())))
    assert [way.way for way in found.forwards] == [PLAIN, CHUNKED, PADDED]
    assert found.verdict == "identical"
    assert not found.weights


def test_two_implementations_differ_by_rounding(subject: Subject) -> None:
    found = compare(record(subject), record(load("builtin:gqa", Settings(attn="eager"))))
    assert found.verdict == "rounding"
    (plain, *_) = found.forwards
    assert 0 < plain.max_abs <= plain.budget < 1e-12
    assert dict(plain.top)[1] == 1.0


def test_best_tokens_that_change_are_counted(subject: Subject) -> None:
    good = record(subject)
    plain, *others = good.forwards
    logits_BTV = plain.logits_BTV.clone()
    for position in (3, 5):
        first, second = logits_BTV[0, position].topk(2).indices.tolist()
        logits_BTV[0, position, [first, second]] = logits_BTV[0, position, [second, first]]
    changed = replace(good, forwards=(replace(plain, logits_BTV=logits_BTV), *others))
    (found, *_) = compare(changed, good).forwards
    length = logits_BTV.shape[1]
    assert (found.verdict, found.flips, found.positions) == ("different", 2, length)
    assert found.first_position == 3
    assert dict(found.top)[1] == pytest.approx(1 - 2 / length)
    assert dict(found.top)[5] == 1.0


def test_logits_of_other_shapes_are_different_and_not_compared(subject: Subject) -> None:
    good = record(subject)
    plain, *others = good.forwards
    shorter = replace(plain, logits_BTV=plain.logits_BTV[:, 1:])
    (found, *_) = compare(replace(good, forwards=(shorter, *others)), good).forwards
    assert (found.verdict, found.positions, found.max_abs) == ("different", 0, float("inf"))


@pytest.mark.parametrize(
    ("fault", "way", "module"),
    [
        ("position-restart", CHUNKED, "model.rotary_emb"),
        ("softmax-scale", PLAIN, "model.layers.0.self_attn"),
        ("leak-outside-attention", PLAIN, "model.layers.0"),
    ],
)
def test_the_way_and_the_first_module_of_a_planted_fault(
    subject: Subject, fault: str, way: str, module: str
) -> None:
    good = record(subject)
    with faults.fault(fault).inject(subject), subject.passes.under(fault, False):
        bad = record(subject, good.rows, good.pad)
    found = compare(good, bad)
    assert found.verdict == "different"
    assert found.worst is not None
    assert found.worst.first is not None
    assert (found.worst.way, found.worst.first.home) == (way, module)


def test_divergence_by_position_starts_at_the_cut(subject: Subject) -> None:
    good = record(subject)
    with (
        faults.fault("position-restart").inject(subject),
        subject.passes.under("position-restart", False),
    ):
        bad = record(subject, good.rows, good.pad)
    (chunked,) = [way for way in compare(good, bad).forwards if way.way == CHUNKED]
    assert chunked.first_position == 8
    assert max(chunked.by_position[:8]) <= chunked.budget < min(chunked.by_position[9:])
    assert [share for share, _ in chunked.kl] == [0.5, 0.9, 0.99, 1.0]
    assert chunked.kl[-1][1] == max(value for _, value in chunked.kl) > 0.01


def test_agreement_is_counted_where_there_are_fewer_rows_than_best_tokens(subject: Subject) -> None:
    row = record(subject).rows[0][:3]
    found = compare(record(subject, (row,)), record(subject, (row,))).forwards[0]
    assert found.positions == 3
    assert dict(found.top) == {1: 1.0, 5: 1.0, 10: 1.0}
