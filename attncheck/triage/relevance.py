"""Whether what was found can explain the report: a call that nobody makes explains nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import get_args

from attncheck.core.finding import Finding, Proof
from attncheck.core.measurement import AtMost, Measurement, verdict_of
from attncheck.core.verdict import Verdict
from attncheck.model.cache_kinds import promised
from attncheck.model.forward_spec import ForwardSpec, Mask2D, Mask4D
from attncheck.model.subject import Subject
from attncheck.triage import steps
from attncheck.triage.answer import UNUSUAL, Question, Remark

SAID = {
    "static": r"\bstatic|torch\.compile|\bcompiled?\b",
    "quantised": r"quanti[sz]",
    "offloaded": r"offload",
    "4D mask": r"\b4-?d\b|custom (?:attention )?mask|block mask",
    "attention weights asked for": r"output_attentions|attention (?:weights|scores|maps?)",
    "eager": r"\beager\b",
    "sdpa": r"\bsdpa\b",
    "flex_attention": r"\bflex",
    "left padding": r"\bpad|\bbatch",
    "on the cache": r"cach|generat|decod|past_key|chunk|prefill|stream|token by token|\bsteps?\b",
}
"""The words with which a report names a special call."""
ELSEWHERE = "not what was reported, but wrong here"


def elsewhere(subject: Subject, finding: Finding, question: Question, agrees: bool) -> str:
    """The special call that every failing case makes and the report does not; empty where the
    finding may explain it. `agrees` says that the reporter's own call was run and is right.
    """
    wrong = [case for case in finding.cases if verdict_of(case) is Verdict.FAIL]
    strange = [_unasked(subject, case, question, agrees) for case in wrong]
    return strange[0] if strange and all(strange) else ""


def concerned(
    subject: Subject, finding: Finding, question: Question, agrees: bool
) -> tuple[Measurement, ...]:
    """The cases without those that fail in special calls which the report does not make."""
    return tuple(
        case
        for case in finding.cases
        if verdict_of(case) is not Verdict.FAIL or not _unasked(subject, case, question, agrees)
    )


def _unasked(subject: Subject, case: Measurement, question: Question, agrees: bool) -> str:
    """What is special about a case's call and not said in the report; empty where nothing is."""
    special = [] if question.symptom else _special(subject, case, agrees)
    asked = question.pattern
    cached = "cached" if question.generate or asked.schedule or asked.cache else ""
    cached += " padded" if asked.padding or len(question.prompts) > 1 else ""
    text = " ".join((question.issue.text, asked.cache, asked.attn, cached))
    return special[0] if special and not all(_said(name, text) for name in special) else ""


def _special(subject: Subject, case: Measurement, agrees: bool) -> list[str]:
    if case.rerun is None:  # a call that raises has a name only
        undeclared = not promised("static", subject.model)
        named = (name for name in SAID if name in case.name)
        return [name for name in named if agrees or (undeclared and name == "static")]
    both = (case.rerun.got, case.rerun.want)
    specs = (spec for spec in both if isinstance(spec, ForwardSpec))
    return [name for spec in specs for name in _of(subject, spec, agrees)]


def _of(subject: Subject, spec: ForwardSpec, agrees: bool) -> Iterator[str]:
    """What is special about a forward. Kinds of caches that the model does not declare are so where
    nothing is known of the reporter's call, too.
    """
    kind = spec.cache_kind
    if kind not in ("", "dynamic") and (agrees or not promised(kind, subject.model)):
        yield kind
    if not agrees:
        return
    if isinstance(spec.mask, Mask2D) and any(0 in row for row in spec.mask.rows):
        yield "left padding"
    if spec.chunks:
        yield "on the cache"
    if spec.attentions:
        yield "attention weights asked for"
    if isinstance(spec.mask, Mask4D):
        yield "4D mask"
    if spec.attn not in (None, subject.attn):
        yield str(spec.attn)


def _said(name: str, text: str) -> bool:
    pattern = next((words for key, words in SAID.items() if key in name), None)
    return pattern is not None and bool(re.search(pattern, text, re.I))


def aside(words: str, finding: Finding) -> Remark:
    """A fault of another call than the reported one."""
    return Remark(title=f"{ELSEWHERE} ({words})", words=finding.summary)


def beside(subject: Subject, finding: Finding) -> Remark | None:
    """A fault of boolean masks alone, or of an implementation that the library does not get right
    either: neither explains a report.
    """
    if only_boolean_masks(finding, subject.attn):
        return aside("boolean masks", finding)
    of_the_library = steps.of_the_library(subject, finding)
    return aside(f"{subject.attn} attention of the library", finding) if of_the_library else None


def unusual(finding: Finding) -> list[Remark]:
    """What a probe warns of and nothing states: mentioned beside a report that nothing explains."""
    counts = (each for each in finding.cases if isinstance(each, AtMost))
    warned = (each.cause for each in counts if verdict_of(each) is Verdict.WARN)
    fault = next((cause.fault for cause in warned if cause.fault and cause.module), "")
    if finding.verdict is not Verdict.WARN or not fault:
        return []
    words = f"{finding.summary}. Right only if the weights were made for it ({fault})."
    return [Remark(title=UNUSUAL, words=words)]


def only_boolean_masks(finding: Finding, attn: str | None) -> bool:
    """Whether nothing fails or warns but calls with a boolean 4D mask, one of them in the
    implementation in use: they explain no other report.
    """
    wrong = [case for case in finding.cases if verdict_of(case) in (Verdict.FAIL, Verdict.WARN)]
    calls = [case.rerun.got if case.rerun else None for case in wrong]
    masks = [call.mask if call else None for call in calls]
    return any(call.attn == attn for call in calls if call) and all(
        isinstance(mask, Mask4D) and mask.boolean for mask in masks
    )


def vagueness(finding: Finding) -> tuple[int, bool]:
    """How little a finding says about its cause; of those that say as much, later tokens in
    earlier logits are the plainest, since they show in two forwards without a cache.
    """
    how = finding.diagnosis.how if finding.diagnosis else "unexplained"
    return get_args(Proof).index(how), finding.probe != "future-token"
