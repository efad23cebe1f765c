"""Whether a finding can explain the report."""

from __future__ import annotations

import pytest

from attncheck.core.divergence import Divergence
from attncheck.core.finding import Diagnosis, Finding
from attncheck.core.measurement import AtMost, Cause, Comparison, Rerun
from attncheck.core.settings import Settings
from attncheck.core.verdict import Verdict
from attncheck.model.forward_spec import ForwardSpec, Mask2D, causal
from attncheck.targets.load import load
from attncheck.triage.answer import Question
from attncheck.triage.issue import Issue
from attncheck.triage.relevance import concerned, elsewhere, unusual, vagueness

TOKENS = ((5, 6, 7, 8),)
USUAL = ForwardSpec(TOKENS)
SPECIAL = {
    "static": ForwardSpec(TOKENS, cache_kind="static", chunks=(3, 1)),
    "attention weights asked for": ForwardSpec(TOKENS, attentions=True),
    "4D mask": ForwardSpec(TOKENS, mask=causal(TOKENS)),
    "eager": ForwardSpec(TOKENS, attn="eager"),
    "on the cache": ForwardSpec(TOKENS, chunks=(2, 2)),
    "left padding": ForwardSpec(TOKENS, mask=Mask2D(((0, 1, 1, 1),))),
}


def failed(*specs: ForwardSpec) -> Finding:
    cases = tuple(
        Comparison("call", Divergence(max_abs=1.0, positions=4), 1e-6, rerun=Rerun(spec, USUAL))
        for spec in specs
    )
    return Finding(probe="implementations", verdict=Verdict.FAIL, summary="wrong", cases=cases)


@pytest.mark.parametrize("name", SPECIAL)
def test_a_call_that_nobody_makes_explains_no_report_whose_own_call_is_right(name: str) -> None:
    subject, finding = load("builtin:gqa", Settings(attn="sdpa")), failed(SPECIAL[name])
    assert elsewhere(subject, finding, Question(), agrees=True) == name
    assert elsewhere(subject, finding, Question(), agrees=False) == ""
    assert elsewhere(subject, failed(SPECIAL[name], USUAL), Question(), agrees=True) == ""


def test_cases_of_calls_that_nobody_makes_are_left_out_of_a_finding() -> None:
    subject, finding = load("builtin:gqa", Settings()), failed(SPECIAL["static"], USUAL)
    kept = concerned(subject, finding, Question(), agrees=True)
    assert kept == finding.cases[1:]
    assert concerned(subject, finding, Question(symptom="cache"), agrees=True) == finding.cases


def test_a_call_that_the_report_names_may_explain_it() -> None:
    subject, finding = load("builtin:gqa", Settings()), failed(SPECIAL["static"])
    told = Question(issue=Issue(text="wrong with cache_implementation='static'"))
    assert elsewhere(subject, finding, told, agrees=True) == ""
    assert elsewhere(subject, finding, Question(symptom="cache"), agrees=True) == ""


def test_a_cache_that_the_own_call_fills_may_explain_the_report() -> None:
    subject, finding = load("builtin:gqa", Settings()), failed(SPECIAL["on the cache"])
    assert elsewhere(subject, finding, Question(generate=4), agrees=True) == ""


def test_a_static_cache_that_the_class_does_not_declare_is_never_the_reason_unsaid() -> None:
    subject = load("builtin:gqa", Settings())
    subject.model._can_compile_fullgraph = False
    finding = failed(SPECIAL["static"])
    assert elsewhere(subject, finding, Question(), agrees=False) == "static"


def test_a_warning_with_a_fault_and_a_place_is_unusual_and_others_are_not() -> None:
    tiled, loss = (
        Finding(
            probe="kv-groups",
            verdict=Verdict.WARN,
            summary="heads are tiled",
            cases=(
                AtMost("heads", 4.0, "heads", broken=Verdict.WARN, cause=Cause(fault, 0.0, place)),
            ),
        )
        for fault, place in (("kv-groups-tiled", "layers.0"), ("label-shift", ""))
    )
    (found,) = unusual(tiled)
    assert found.words == (
        "heads are tiled. Right only if the weights were made for it (kv-groups-tiled)."
    )
    assert unusual(loss) == []


def test_what_is_measured_comes_before_a_repair_and_before_nothing() -> None:
    order = [
        Finding(probe="odd", verdict=Verdict.FAIL, summary="", diagnosis=diagnosis)
        for diagnosis in (
            Diagnosis(fault="softmax-scale", how="measured"),
            Diagnosis(fault="softmax-scale", how="repaired"),
            None,
        )
    ]
    assert sorted(order, key=vagueness) == order
