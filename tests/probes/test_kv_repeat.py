"""kv-repeat: healthy models are not accused, planted faults are caught, the cache's figures are
those of the config.
"""

from __future__ import annotations

import pytest
from probing import ACCUSING, HEALTHY, assert_caught, case, finding, loaded

from attncheck.core.measurement import verdict_of
from attncheck.core.verdict import Verdict
from attncheck.model.subject import Subject

PROBE = "kv-repeat"


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
        "kv-stored-repeated",
        "kv-repeat-copied",
    ],
)
def test_planted_faults_are_caught_and_leave_nothing_behind(subject: Subject, fault: str) -> None:
    assert_caught(subject, PROBE, fault)


@pytest.mark.parametrize("name", ["broken-mask", "broken-positions"])
def test_the_broken_builtins_do_not_fail_here(name: str) -> None:
    assert finding(loaded(f"builtin:{name}"), PROBE).verdict is not Verdict.FAIL


def test_the_window_cache_keeps_its_prefill_alive() -> None:
    storage = case(finding(loaded("builtin:window"), PROBE), "storage behind cached tensors")
    assert verdict_of(storage) is Verdict.WARN
    assert storage.value == pytest.approx(24 / 7)


def test_figures_of_the_cache(subject: Subject) -> None:
    cases = {case.name: case for case in finding(subject, PROBE).cases}
    assert cases["cache bytes per token and layer"].value == 2 * 2 * 16 * 8
    assert (
        cases["cache bytes per token and layer"].note == "in theory MHA 1024, this GQA 512, MQA 256"
    )
    assert cases["cache copied per decode step, eager"].value == 2.0
    assert cases["cache copied per decode step, sdpa"].value == 0.0
