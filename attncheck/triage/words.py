"""What an answer says in words: its headline, what to do, and what would change its falsifier."""

from __future__ import annotations

from attncheck.core.finding import Finding
from attncheck.triage.answer import PrecisionLine, Triage, TriageAnswer

FALSIFIERS = {
    TriageAnswer.CONFIRMED: "A healthy model gives the same numbers in both ways of asking: run the reproduction on another "
    "release or machine; if it agrees there, the fault is in this one's code.",
    TriageAnswer.NUMERICS: "A difference that stays as large in float64 as in {dtype} would be a fault. If yours is larger than the "
    "table's, give the prompts and the way of asking (--prompt, --padding-side, --cache, --attn).",
    TriageAnswer.BEHAVIOUR: "A call that asks for something else and still gets this would be a fault: the steps above held.",
    TriageAnswer.NOT_REPRODUCED: "A prompt, an implementation, a cache or a release that is not among the steps above: give it with "
    "--prompt, --attn, --cache, --padding-side, or a good run to hold it against with --against.",
}


def headline(triage: Triage, reported: str) -> str:
    """The answer in a sentence."""
    if triage.answer is TriageAnswer.CONFIRMED and triage.finding is not None:
        return _confirmed(triage.finding)
    if triage.answer is TriageAnswer.NUMERICS:
        return _numerics(triage, reported)
    if triage.answer is TriageAnswer.BEHAVIOUR:
        decisive = [remark for remark in triage.remarks if remark.decides] or list(triage.remarks)
        return "; ".join(remark.title for remark in decisive[:3])
    tried = sum(step.verdict.value != "skip" for step in triage.steps)
    return f"nothing of {tried} things tried differs beyond rounding"


def _confirmed(finding: Finding) -> str:
    found, place = finding.diagnosis, finding.location
    where = f" in {place.module}" if place is not None and place.module else ""
    if found is not None and found.how == "reproduced":
        return f"{found.fault}{where}: {finding.summary}"
    if found is not None and found.how == "repaired":
        return f"{found.fault} heals it{where}: {finding.summary}"
    return f"a difference that is no rounding{where}: {finding.summary}"


def _numerics(triage: Triage, reported: str) -> str:
    own = next((line for line in triage.lines if line.dtype == reported), triage.lines[0])
    finest = triage.lines[-1]
    return (
        f"{own.way} moves the logits by {own.max_abs:.2g} in {own.dtype} and by {finest.max_abs:.1g} in {finest.dtype}: "
        f"rounding; {_flips(own)}"
    )


def _flips(line: PrecisionLine) -> str:
    if not line.flips:
        return f"the best token stays the same at all {line.positions} positions"
    return f"the best token changes at {line.flips} of {line.positions} positions"


def advised(triage: Triage) -> str:
    """What to do next."""
    if triage.answer is TriageAnswer.CONFIRMED:
        return _mend(triage)
    if triage.answer is TriageAnswer.NUMERICS:
        return (
            "Do not compare exact text: after one near tie it goes another way. Compare the logits of the same ids "
            "(teacher-forced) in float32, or the share of equal best tokens where the two best are far apart."
        )
    if triage.answer is TriageAnswer.BEHAVIOUR:
        return " ".join(
            remark.words for remark in triage.remarks if remark.decides or len(triage.remarks) == 1
        )
    return ""


def _mend(triage: Triage) -> str:
    right = triage.smallest.right if triage.smallest else ()
    if right and (triage.diagnosis is None or triage.diagnosis.how == "unexplained"):
        return f"Ask {right[0]}, where every layer keeps its promise, and look at what only the plain call does in this module."
    return triage.diagnosis.advice if triage.diagnosis else ""


def falsifier(triage: Triage) -> str:
    """What would change its falsifier."""
    dtype = triage.lines[0].dtype if triage.lines else "the present precision"
    return FALSIFIERS[triage.answer].format(dtype=dtype)
