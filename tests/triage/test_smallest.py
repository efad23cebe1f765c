"""Delta debugging and bisection find the smallest failing call, within a number of forwards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from triaging import investigation

from attncheck.core.settings import Settings
from attncheck.targets.load import load
from attncheck.triage import axes, smallest
from attncheck.triage.answer import Question
from attncheck.triage.call_pattern import CallPattern
from attncheck.triage.material import material


@pytest.mark.parametrize("wanted", [{3}, {0, 7}, {2, 3, 5}, set(range(8))])
def test_ddmin_keeps_exactly_what_is_needed(wanted: set[int]) -> None:
    def fails(kept: Sequence[int]) -> bool:
        return wanted <= set(kept)

    assert set(smallest.ddmin(range(8), fails, lambda: False)) == wanted


def test_ddmin_stops_when_its_passes_are_spent() -> None:
    assert smallest.ddmin(range(8), lambda kept: True, lambda: True) == list(range(8))


@pytest.mark.parametrize("least", [2, 3, 9, 24])
def test_halving_finds_the_least_length(least: int) -> None:
    assert smallest.least(2, 24, lambda n: n >= least, lambda: False) == least


def test_a_fault_of_two_axes_is_cut_down_to_these_two() -> None:
    subject = load("builtin:broken-positions", Settings())
    rows = material(subject, Question())
    wide = CallPattern(schedule="chunks", batch=3, mask="2d", attn="eager", cache="static")
    assert axes.fails(axes.plain_case(subject, rows, wide))
    small, found = smallest.of_pattern(subject, rows, wide, 60)
    assert small == CallPattern(schedule="chunks")
    assert (found.words, found.tokens, found.layers) == ("fed in uneven chunks on a cache", 3, 1)
    assert not found.spent


def test_the_script_is_made_of_the_smallest_passes_and_shows_the_fault(tmp_path: Path) -> None:
    factory = tmp_path / "made.py"
    made = "from attncheck.targets.builtin import build\n\n\ndef model():\n    return build('broken-positions', None)\n"
    factory.write_text(made)
    found = investigation(f"{factory}:model", symptom="cache")
    found.repro = tmp_path
    triage = found.run()
    assert triage.no_script == ""
    assert "chunks=(1, 1, 1)" in triage.script
    assert len(list(tmp_path.glob("*.py"))) == 2
