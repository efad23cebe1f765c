"""position-reset: healthy models pass, planted faults are caught, models without positions are
skipped.
"""

from __future__ import annotations

import pytest
from probing import ACCUSING, HEALTHY, assert_caught, finding, loaded

from attncheck.core.verdict import Verdict
from attncheck.model.subject import Subject

PROBE = "position-reset"


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_builtins_are_not_accused(name: str) -> None:
    found = finding(loaded(f"builtin:{name}"), PROBE)
    assert found.verdict not in ACCUSING


def test_controls_are_two_and_caught(subject: Subject) -> None:
    controls = finding(subject, PROBE).controls
    assert len(controls) == 2
    assert all(control.detected for control in controls)


@pytest.mark.parametrize(
    "fault",
    [
        "position-restart",
        "position-ids-ignored",
    ],
)
def test_planted_faults_are_caught_and_leave_nothing_behind(subject: Subject, fault: str) -> None:
    assert_caught(subject, PROBE, fault)


@pytest.mark.parametrize("name", ["broken-mask", "broken-positions"])
def test_the_broken_builtins_fail(name: str) -> None:
    assert finding(loaded(f"builtin:{name}"), PROBE).verdict is Verdict.FAIL


def test_a_model_without_positions_is_skipped_with_a_sentence() -> None:
    found = finding(loaded("builtin:alibi"), PROBE)
    assert (found.verdict, found.skip_reason) == (
        Verdict.SKIP,
        "BloomForCausalLM.forward takes no `position_ids`",
    )
