"""The five probes the tool began with: healthy models pass with their controls, planted faults are
caught where they should be.
"""

from __future__ import annotations

import pytest

from attncheck.core import registry
from attncheck.core.finding import Finding, Verdict, verdict_of
from attncheck.core.settings import Settings
from attncheck.faults.catalogue import FAULTS
from attncheck.model.subject import Subject
from attncheck.probe import judge_cases
from attncheck.report.model import evidence_of
from attncheck.run.runner import ProbeFinished, noticed, run_probes
from attncheck.targets.load import load

FIVE = ("future-token", "decode-paths", "position-reset", "document-leakage", "kv-repeat")
HEALTHY = ("gqa", "mha", "window", "alibi", "moe")


def findings(subject: Subject, *names: str) -> dict[str, Finding]:
    events = run_probes(subject, [registry.load(name) for name in names])
    return {
        event.finding.probe: event.finding for event in events if isinstance(event, ProbeFinished)
    }


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_builtins_are_not_accused(name: str) -> None:
    found = findings(load(f"builtin:{name}", Settings()), *FIVE)
    assert not {f.verdict for f in found.values()} & {
        Verdict.FAIL,
        Verdict.ERROR,
        Verdict.VACUOUS,
        Verdict.NOISE,
    }
    assert found["future-token"].verdict is found["decode-paths"].verdict is Verdict.PASS


@pytest.mark.parametrize("probe", FIVE)
def test_controls_are_two_and_caught(subject: Subject, probe: str) -> None:
    finding = findings(subject, probe)[probe]
    assert len(finding.controls) == 2
    assert all(control.detected for control in finding.controls)


CAUGHT = [
    ("causal-mask-missing", "future-token"),
    ("mask-off-by-one", "future-token"),
    ("leak-outside-attention", "future-token"),
    ("mask-top-left", "decode-paths"),
    ("position-restart", "decode-paths"),
    ("position-offset", "decode-paths"),
    ("position-frozen", "decode-paths"),
    ("cache-drops-token", "decode-paths"),
    ("position-restart", "position-reset"),
    ("position-ids-ignored", "position-reset"),
    ("document-leak", "document-leakage"),
    ("kv-stored-repeated", "kv-repeat"),
    ("kv-repeat-copied", "kv-repeat"),
]


@pytest.mark.parametrize(("fault", "probe"), CAUGHT)
def test_a_planted_fault_is_caught(subject: Subject, fault: str, probe: str) -> None:
    measured = registry.load(probe)
    healthy = {case.name: case for case in measured.measure(subject)}
    inject = FAULTS[fault]
    with inject.inject(subject), subject.passes.under(fault, inject.on_cache_only):
        assert any(noticed(case, healthy.get(case.name)) for case in measured.measure(subject))
    assert all(
        verdict_of(case) is verdict_of(healthy[case.name]) for case in measured.measure(subject)
    ), "the plant left something"


@pytest.mark.parametrize(
    ("name", "failing"),
    [
        ("broken-mask", {"future-token", "decode-paths", "position-reset"}),
        ("broken-positions", {"decode-paths", "position-reset"}),
    ],
)
def test_the_broken_builtins_fail_in_the_right_probes(name: str, failing: set[str]) -> None:
    found = findings(load(f"builtin:{name}", Settings()), *FIVE)
    assert {probe for probe, finding in found.items() if finding.verdict is Verdict.FAIL} == failing


def test_a_leak_over_eos_alone_fails_only_when_isolation_is_asked_for(subject: Subject) -> None:
    strict = registry.load("document-leakage", {"policy": "isolate"})
    (event,) = [e for e in run_probes(subject, [strict]) if isinstance(e, ProbeFinished)]
    assert event.finding.verdict is Verdict.FAIL
    assert event.finding.summary.startswith("EOS alone: logits differ by ")
    assert findings(subject, "document-leakage")["document-leakage"].verdict is Verdict.WARN


def test_the_isolating_call_isolates_and_the_lookalikes_do_not(subject: Subject) -> None:
    cases = {
        case.name: verdict_of(case)
        for case in findings(subject, "document-leakage")["document-leakage"].cases
    }
    assert cases["4D block mask, restarted positions"] is Verdict.PASS
    assert cases["restarted positions, no mask, cache off"] is Verdict.PASS
    assert cases["restarted positions, no mask, default cache"] is Verdict.WARN
    assert cases["restarted positions, 2D mask of ones, cache off"] is Verdict.WARN


def test_a_model_without_positions_is_skipped_with_a_sentence() -> None:
    finding = findings(load("builtin:alibi", Settings()), "position-reset")["position-reset"]
    assert (finding.verdict, finding.skip_reason) == (
        Verdict.SKIP,
        "BloomForCausalLM.forward takes no `position_ids`",
    )


def test_the_window_cache_keeps_its_prefill_alive() -> None:
    finding = findings(load("builtin:window", Settings()), "kv-repeat")["kv-repeat"]
    cases = {case.name: case for case in finding.cases}
    storage = cases["storage behind cached tensors"]
    assert verdict_of(storage) is Verdict.WARN
    assert storage.value == pytest.approx(24 / 7)


def test_figures_of_the_cache(subject: Subject) -> None:
    cases = {case.name: case for case in findings(subject, "kv-repeat")["kv-repeat"].cases}
    assert cases["cache bytes per token and layer"].value == 2 * 2 * 16 * 8
    assert (
        cases["cache bytes per token and layer"].note == "in theory MHA 1024, this GQA 512, MQA 256"
    )
    assert cases["cache copied per decode step, eager"].value == 2.0
    assert cases["cache copied per decode step, sdpa"].value == 0.0


def test_bfloat16_is_decided_by_the_ladder() -> None:
    finding = findings(load("builtin:gqa", Settings(dtype="bfloat16")), "decode-paths")[
        "decode-paths"
    ]
    assert finding.verdict is Verdict.NOISE
    ladder = next(case.ladder for case in finding.cases if case.ladder)
    assert [rung.dtype for rung in ladder] == ["bfloat16", "float64"]
    assert ladder[0].max_abs > 1e9 * ladder[1].max_abs


def test_a_fault_in_bfloat16_is_a_fail() -> None:
    finding = findings(
        load("builtin:broken-positions", Settings(dtype="bfloat16")), "decode-paths"
    )["decode-paths"]
    assert finding.verdict is Verdict.FAIL


def test_saved_evidence_is_judged_the_same(subject: Subject) -> None:
    for finding in findings(subject, *FIVE).values():
        assert judge_cases(evidence_of(finding)).verdict in (finding.verdict, Verdict.PASS)
