"""Lengths that fail, the first of them, and their rule."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from attncheck.attention.call import AttentionCall
from attncheck.core.settings import Settings
from attncheck.model.subject import Subject
from attncheck.targets.load import load
from attncheck.triage.lengths import ALONE, PADDED, Broken, LengthSweep, long_row, swept


def broken(subject: Subject, wrong: Callable[[int], bool], padded: bool = False) -> Broken | None:
    """The sweep of a model whose queries are too large in forwards of wrong lengths."""

    def handler(call: AttentionCall) -> object:
        length = call.query_BHTD.shape[2]
        square = length == call.key_BGSD.shape[2]
        has_padding = isinstance(call.mask, torch.Tensor)
        if square and wrong(length) and (has_padding or not padded):
            call.query_BHTD = call.query_BHTD * 1.5
        return call.run()

    with subject.handle_calls(handler):
        return swept(LengthSweep(subject, long_row(subject, ()), lambda: False))


@pytest.mark.parametrize(
    ("wrong", "first", "rule"),
    [
        (lambda n: n > 1 and n % 32 == 1, 33, "lengths of 32 k + 1"),
        (lambda n: n % 5 == 0, 5, "multiples of 5"),
        (lambda n: n > 100, 101, "lengths beyond 100"),
        (lambda n: n > 30, 31, "lengths beyond 30"),
    ],
)
def test_the_rule_of_the_lengths_is_found(
    subject: Subject, wrong: Callable[[int], bool], first: int, rule: str
) -> None:
    found = broken(subject, wrong)
    assert found is not None
    assert (found.length, found.rule) == (first, rule)


def test_a_length_that_only_padding_breaks_is_found(subject: Subject) -> None:
    found = broken(subject, lambda n: n % 8 == 0, padded=True)
    assert found is not None
    assert (found.way, found.rule) == (PADDED, "multiples of 8")


@pytest.mark.parametrize("name", ["gqa", "mha", "window", "alibi"])
def test_healthy_models_agree_at_every_length(name: str) -> None:
    subject = load(f"builtin:{name}", Settings())
    row = long_row(subject, ())[:300]
    sweep = LengthSweep(subject, row, lambda: False)
    assert swept(sweep) is None
    assert {way for _, way in sweep.known} >= {ALONE, PADDED}
    assert len(sweep.cases) > 60
