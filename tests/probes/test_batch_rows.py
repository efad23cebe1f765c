"""batch-rows: rows that read each other are caught, at once and on a cache."""

from __future__ import annotations

import pytest
from probing import HEALTHY, caught_by, finding, loaded

from attncheck.core.verdict import Verdict
from attncheck.model.subject import Subject


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_builtins_pass_with_both_controls(name: str) -> None:
    found = finding(loaded(f"builtin:{name}"), "batch-rows")
    assert found.verdict is Verdict.PASS
    assert [(control.fault, control.detected) for control in found.controls] == [
        ("rows-mixed", True),
        ("cache-reorder", True),
    ]


@pytest.mark.parametrize(
    ("fault", "where"),
    [("rows-mixed", "another row changed"), ("cache-reorder", "alone, decoded on one cache")],
)
def test_mixed_rows_are_caught_where_they_mix(subject: Subject, fault: str, where: str) -> None:
    broken = caught_by(subject, "batch-rows", fault)
    assert broken is not None
    assert broken.name == where


def test_a_state_lost_between_chunks_is_not_taken_for_mixed_rows() -> None:
    assert finding(loaded("config:mamba"), "batch-rows").verdict is Verdict.PASS
