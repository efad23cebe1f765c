"""Which steps run and which of them decides."""

from __future__ import annotations

from triaging import investigation

from attncheck.core.finding import Diagnosis, Finding
from attncheck.core.settings import Settings
from attncheck.core.verdict import Verdict
from attncheck.targets.load import load
from attncheck.triage.answer import Question, TriageAnswer
from attncheck.triage.call_pattern import CallPattern
from attncheck.triage.run import Investigation


def test_without_a_symptom_a_healthy_model_in_float32_is_not_accused() -> None:
    triage = investigation("builtin:gqa", symptom="packing", passes=40).run()
    assert triage.answer in (TriageAnswer.BEHAVIOUR, TriageAnswer.NOT_REPRODUCED)
    assert triage.finding is None


def test_a_difference_in_bfloat16_is_rounding_with_its_table() -> None:
    triage = investigation("builtin:gqa", "bfloat16", symptom="implementation").run()
    assert triage.answer is TriageAnswer.NUMERICS
    assert [line.dtype for line in triage.lines] == ["bfloat16", "float32", "float64"]
    sizes = [line.max_abs for line in triage.lines]
    assert sizes[0] > 1e2 * sizes[1] > 1e6 * sizes[2]
    assert all(line.max_abs <= line.budget for line in triage.lines)
    verdicts = {step.name: step.verdict for step in triage.steps}
    assert {verdicts[name] for name in ("one axis at a time", "axes crossed", "control")} == {
        Verdict.PASS
    }


def test_the_reporters_own_call_runs_before_the_probes() -> None:
    triage = investigation(
        "builtin:broken-positions",
        symptom="cache",
        pattern=CallPattern(cache="static", schedule="steps"),
    ).run()
    assert triage.answer is TriageAnswer.CONFIRMED
    assert triage.diagnosis is not None
    assert triage.diagnosis.fault == "position-restart"
    names = [step.name for step in triage.steps]
    assert names == ["finite values", "reference", "the reporter's own call"]
    assert triage.smallest is not None
    assert (triage.smallest.words, triage.smallest.tokens) == (
        "decoded token by token on a cache",
        3,
    )


def test_a_fault_of_boolean_masks_does_not_answer_a_report_of_rounding() -> None:
    subject = load("builtin:gqa", Settings(attn="eager"))
    triage = Investigation(subject, Question(symptom="implementation"), "float16").run()
    assert triage.answer is TriageAnswer.NUMERICS
    assert any("boolean 4D mask, eager" in remark.words for remark in triage.remarks)


def test_a_measured_fault_ends_the_search_and_comes_before_a_repair() -> None:
    search = investigation("builtin:gqa")
    repaired, measured = (
        Finding(
            probe="odd",
            verdict=Verdict.FAIL,
            summary=how,
            diagnosis=Diagnosis(fault="softmax-scale", how=how),
        )
        for how in ("repaired", "measured")
    )
    search.first += [lambda: repaired, lambda: measured]
    assert search.fault() is measured
    assert search.log.steps == []
