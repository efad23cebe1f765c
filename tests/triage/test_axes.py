"""Every value and every pair of values of the axes passes on healthy models."""

from __future__ import annotations

import pytest

from attncheck.core.measurement import verdict_of
from attncheck.core.settings import Settings
from attncheck.core.verdict import Verdict
from attncheck.model.subject import Subject
from attncheck.targets.load import load
from attncheck.triage import axes
from attncheck.triage.answer import Question
from attncheck.triage.material import material


@pytest.mark.parametrize("name", ["gqa", "mha", "window", "alibi", "moe"])
def test_every_crossing_of_axes_holds_on_healthy_models(name: str) -> None:
    subject = load(f"builtin:{name}", Settings())
    rows, offered = material(subject, Question()), axes.values(subject)
    crossed = list(axes.crossed(offered))
    assert all(len(pattern.axes) > 1 for pattern in crossed)
    for pattern in [*axes.alone(offered, ()), *crossed]:
        try:
            case = axes.plain_case(subject, rows, pattern)
        except axes.Unsupported:
            continue
        assert verdict_of(case) is Verdict.PASS, pattern


def test_crossing_lets_every_two_values_meet(subject: Subject) -> None:
    offered = axes.values(subject)
    met = {frozenset(pair) for each in axes.crossed(offered) for pair in axes.pairs(vars(each))}
    pairs = {
        frozenset(((one, a), (two, b)))
        for one in offered
        for two in offered
        if one < two
        for a in offered[one]
        for b in offered[two]
    }
    assert pairs <= met
