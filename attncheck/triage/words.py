"""The text of an answer: its headline, what to do, and which observation would falsify it."""

from __future__ import annotations

from attncheck.core.finding import Finding
from attncheck.diagnosis.claims import PROVEN
from attncheck.triage.answer import PrecisionLine, Triage, TriageAnswer

FALSIFIERS = {
    TriageAnswer.CONFIRMED: "A healthy model gives the same logits in both calls: run the "
    "reproduction on another release or machine; if the two agree there, the fault is in the code "
    "installed here.",
    TriageAnswer.NUMERICS: "A difference that stays as large in float64 as in {dtype} would be a "
    "fault. If yours is larger than the table's, pass the prompts and the options of your call "
    "(--prompt, --padding-side, --cache, --attn).",
    TriageAnswer.BEHAVIOUR: "A call that requests something else and still gives this result would "
    "be a fault: the steps above passed.",
    TriageAnswer.NOT_REPRODUCED: "A prompt, an implementation, a cache or a release that is not "
    "among the steps above: pass it with --prompt, --attn, --cache or --padding-side, or pass a "
    "good run to compare with as --against.",
}
NUMERIC_ADVICE = (
    "Do not compare exact text: greedy decoding diverges after a near tie. Compare the logits of "
    "the same ids (teacher-forced) in float32, or the share of equal best tokens at positions "
    "where the two best are far apart."
)


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
    return f"none of {tried} steps shows a difference beyond rounding"


def _confirmed(finding: Finding) -> str:
    found, place = finding.diagnosis, finding.location
    where = f" in {place.module}" if place is not None and place.module else ""
    what = "a difference beyond rounding"
    if found is not None and found.how in PROVEN:
        what = found.fault or what
    elif found is not None and found.how == "repaired":
        what = f"{found.fault} fixes it"
    return f"{what}{where}: {finding.summary}"


def _numerics(triage: Triage, reported: str) -> str:
    own = next((line for line in triage.lines if line.dtype == reported), triage.lines[0])
    finest = triage.lines[-1]
    return (
        f"{own.way} moves the logits by {own.max_abs:.2g} in {own.dtype} and by "
        f"{finest.max_abs:.1g} in {finest.dtype}: rounding; {_flips(own)}"
    )


def _flips(line: PrecisionLine) -> str:
    if not line.flips:
        return f"the best token stays the same at all {line.positions} positions"
    return f"the best token changes at {line.flips} of {line.positions} positions"


def advised(triage: Triage) -> str:
    """What to do next."""
    if triage.answer is TriageAnswer.CONFIRMED:
        return _repair_advice(triage)
    if triage.answer is TriageAnswer.NUMERICS:
        return NUMERIC_ADVICE
    if triage.answer is TriageAnswer.BEHAVIOUR:
        decisive = [each for each in triage.remarks if each.decides or len(triage.remarks) == 1]
        return " ".join(remark.words for remark in decisive)
    return ""


def _repair_advice(triage: Triage) -> str:
    right = triage.smallest.right if triage.smallest else ()
    if right and (triage.diagnosis is None or triage.diagnosis.how == "unexplained"):
        return (
            f"Call the model {right[0]}, where every layer computes what the config says, and "
            "look for what only the plain call does in this module."
        )
    return triage.diagnosis.advice if triage.diagnosis else ""


def falsifier(triage: Triage) -> str:
    """Which observation would falsify the answer."""
    dtype = triage.lines[0].dtype if triage.lines else "the present precision"
    return FALSIFIERS[triage.answer].format(dtype=dtype)
