"""decode-paths: healthy models pass, planted faults are caught, and rounding is told from a fault
in low precision.
"""

from __future__ import annotations

from typing import Any

import pytest
from probing import ACCUSING, HEALTHY, assert_caught, case, finding, loaded, without_mask
from transformers.cache_utils import DynamicLayer

from attncheck.core.measurement import verdict_of
from attncheck.core.verdict import Verdict
from attncheck.diagnosis.diagnose import diagnose
from attncheck.faults.engine import injection
from attncheck.model.subject import Subject
from attncheck_probes.decode_paths import LONG, ways
from attncheck_probes.decode_paths.ways import AS_IMPLICIT

PROBE = "decode-paths"


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_builtins_are_not_accused(name: str) -> None:
    found = finding(loaded(f"builtin:{name}"), PROBE)
    assert found.verdict not in ACCUSING
    assert found.verdict is Verdict.PASS


def test_controls_are_two_and_caught(subject: Subject) -> None:
    controls = finding(subject, PROBE).controls
    assert len(controls) == 2
    assert all(control.detected for control in controls)


@pytest.mark.parametrize(
    "fault",
    [
        "mask-top-left",
        "position-restart",
        "position-offset",
        "position-frozen",
        "cache-drops-token",
    ],
)
def test_planted_faults_are_caught_and_leave_nothing_behind(subject: Subject, fault: str) -> None:
    assert_caught(subject, PROBE, fault)


@pytest.mark.parametrize("name", ["broken-mask", "broken-positions"])
def test_the_broken_builtins_fail(name: str) -> None:
    assert finding(loaded(f"builtin:{name}"), PROBE).verdict is Verdict.FAIL


STEPS = "one token at a time, explicit positions"


def test_a_way_that_is_another_to_the_bit_is_not_stepped_again(subject: Subject) -> None:
    found = finding(subject, PROBE)
    assert case(found, STEPS).note == AS_IMPLICIT
    fed = ways.fed(subject, (1,) * subject.inputs.length, "explicit positions")
    assert not subject.passes.knows(fed)
    assert verdict_of(case(found, STEPS)) is Verdict.PASS


def test_a_way_that_differs_in_single_steps_is_stepped(subject: Subject) -> None:
    adapter = subject.forward_adapter

    def late(call: dict[str, Any]) -> dict[str, Any]:
        positions = call.get(str(adapter.positions_name))
        if positions is None or positions.shape[1] > 1 or positions.min() < 16:
            return call
        return {**call, str(adapter.positions_name): positions + 1}

    with injection.at_arguments(subject, late):
        found = finding(subject, PROBE)
    wrong = [each.name for each in found.cases if each.beyond]
    assert STEPS in wrong
    assert not any("implicit positions" in name for name in wrong)


def test_bfloat16_is_decided_by_the_ladder() -> None:
    found = finding(loaded("builtin:gqa", dtype="bfloat16"), PROBE)
    assert found.verdict is Verdict.PASS
    ladder = next(case.ladder for case in found.cases if case.ladder)
    assert [level.dtype for level in ladder] == ["bfloat16", "float64"]
    assert ladder[0].max_abs > 1e9 * ladder[1].max_abs


def test_a_fault_in_bfloat16_is_a_fail() -> None:
    found = finding(loaded("builtin:broken-positions", dtype="bfloat16"), PROBE)
    assert found.verdict is Verdict.FAIL


def test_a_chunk_of_32_on_a_cache_that_is_not_masked(double: Subject) -> None:
    without_mask(double, lambda queries, before: queries >= 32 and before > 0)
    found = finding(double, "decode-paths")
    assert [each.name for each in found.cases if verdict_of(each) is Verdict.FAIL] == [
        "a long row, a long chunk"
    ]
    assert case(found, "a long row, a long chunk").divergence.first_position in range(65, 73)


def test_keys_that_pass_through_bfloat16_on_their_way_into_the_cache(
    double: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = DynamicLayer.update

    def rounded(layer: Any, keys: Any, values: Any, *rest: Any, **named: Any) -> Any:
        return usual(
            layer,
            keys.bfloat16().to(keys.dtype),
            values.bfloat16().to(values.dtype),
            *rest,
            **named,
        )

    assert finding(double, "decode-paths").verdict is Verdict.PASS
    double.passes.forget()
    monkeypatch.setattr(DynamicLayer, "update", rounded)
    found = diagnose(double, finding(double, "decode-paths"))
    assert found.verdict is Verdict.FAIL
    assert found.diagnosis is not None
    assert found.diagnosis.fault == "cache-low-precision"
    assert 1e-5 < max(each.max_abs or 0.0 for each in found.cases) < 0.2


@pytest.mark.parametrize("length", [5, 18, 19, 130])
def test_no_chunk_of_a_long_row_is_empty(length: int) -> None:
    for schedule in LONG.values():
        assert sum(schedule(length)) == length
        assert min(schedule(length)) > 0
