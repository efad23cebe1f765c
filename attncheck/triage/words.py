"""The text of an answer: its headline, what to do, and which observation would falsify it."""

from __future__ import annotations

import re

from attncheck.core.finding import Finding
from attncheck.diagnosis.claims import PROVEN
from attncheck.diagnosis.lost_numbers import WEIGHTS
from attncheck.triage.answer import OWN, UNUSUAL, PrecisionLine, Remark, Triage, TriageAnswer

NUMERIC_ADVICE = (
    "Do not compare exact text: greedy decoding diverges after a near tie. Compare the logits of "
    "the same ids (teacher-forced) in float32, or the share of equal best tokens at positions "
    "where the two best are far apart."
)
FUTURE = "later tokens change earlier logits"
LINE = 160


def headline(triage: Triage, reported: str) -> str:
    """The answer in a sentence."""
    if triage.answer is TriageAnswer.CONFIRMED and triage.finding is not None:
        return _confirmed(triage.finding)
    if triage.answer is TriageAnswer.NUMERICS:
        return _numerics(triage, reported)
    if triage.answer is TriageAnswer.BEHAVIOUR:
        return "; ".join(remark.title for remark in _decisive(triage)[:3])
    return _not_reproduced(triage, reported)


def _not_reproduced(triage: Triage, reported: str) -> str:
    tried = sum(step.verdict.value != "skip" for step in triage.steps)
    words = f"none of {tried} steps shows a difference beyond rounding"
    own_call = next((step for step in triage.steps if step.name == OWN), None)
    if own_call is not None and own_call.verdict.value == "skip":
        words = f"{OWN} cannot be run here ({own_call.words}), and {words}"
    own = _line(triage, reported)
    if own is not None:
        words += f", and {_flips(own)} in {own.dtype}"
    odd = next((each.words for each in triage.remarks if each.title == UNUSUAL), "")
    if odd:
        return f"{words}; but look at this: {odd.rstrip('.')}"
    backed = any(step.name == "control" and step.verdict.value == "pass" for step in triage.steps)
    return f"{words}; a fault would have shown" if backed else words


def _decisive(triage: Triage) -> list[Remark]:
    """The remarks that answer the report; where none does at once, those that do at last."""
    remarks = triage.remarks
    return [each for each in remarks if each.decides] or [each for each in remarks if each.late]


def _line(triage: Triage, reported: str) -> PrecisionLine | None:
    return next((line for line in triage.lines if line.dtype == reported), None)


def _confirmed(finding: Finding) -> str:
    found, place = finding.diagnosis, finding.location
    where = f" in {place.module}" if place is not None and place.module else ""
    what = FUTURE if finding.probe == "future-token" else "a difference beyond rounding"
    if found is not None and found.how in PROVEN:
        what = (
            found.fault or _first_sentence(found.sentence) or (found.name if found.family else what)
        )
    elif found is not None and found.how == "repaired":
        what = f"{found.fault} fixes it"
    summary = finding.summary
    if found is not None and found.fault == WEIGHTS:  # what the numbers lead to says nothing
        summary = re.split(r"\.\s", found.advice, maxsplit=1)[0]
    if what.partition(":")[0].lower() == summary.partition(":")[0].lower():
        return f"{summary}{where}"  # both say what was compared, and the summary how often
    return f"{what}{where}: {summary}"


def _first_sentence(text: str) -> str:
    """What was measured where no fault has a name for it; empty where it is too long for a line."""
    first = re.split(r"\.(?:\s|$)", text, maxsplit=1)[0]
    return first[:1].lower() + first[1:] if len(first) <= LINE else ""


def _numerics(triage: Triage, reported: str) -> str:
    own = _line(triage, reported) or triage.lines[0]
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
        return " ".join(remark.words for remark in _decisive(triage))
    return _missing(triage)


def _missing(triage: Triage) -> str:
    """What the report leaves open, with the options that take it; and another release."""
    known = {name for name, _ in triage.told}
    wanted = {
        "--prompt": "the prompts whole (--prompt)",
        "--generate": "the call (--generate, --padding-side, --cache, --attn, --beams, --chat, or "
        "the issue itself with --from)",
        "--dtype": "the dtype (--dtype)",
    }
    if triage.called:
        wanted.pop("--generate")
        if "of the prompts" in triage.called:
            wanted.pop("--prompt")
    asked = [words for name, words in wanted.items() if name not in known]
    left_out = dict(triage.told).get("not run", "")
    asked += [f"the call with what was not run here ({left_out})"] if left_out else []
    parts = ", ".join([*asked, "a good run to compare with (--against)"])
    return f"Send what is missing here: {parts}.{_release(triage)}"


def _release(triage: Triage) -> str:
    """The reporter's own release, where it is not the one that ran."""
    told = dict(triage.told).get("transformers", "")
    here = re.search(r"transformers (\S+)", dict(triage.read).get("versions", ""))
    if not told or here is None or here[1].startswith(told):
        return ""
    return f" The report is of transformers {told}, this ran {here[1]}: run it there as well."


def _repair_advice(triage: Triage) -> str:
    right = triage.smallest.right if triage.smallest else ()
    if right and (triage.diagnosis is None or triage.diagnosis.how == "unexplained"):
        return (
            f"Call the model {right[0]}, where every layer computes what the config says, and "
            "look for what only the plain call does in this module."
        )
    return triage.diagnosis.advice if triage.diagnosis else ""


def falsifier(triage: Triage, reported: str) -> str:
    """Which observation would change the answer, in this case."""
    own, finest = _line(triage, reported), triage.lines[-1] if triage.lines else None
    if triage.answer is TriageAnswer.CONFIRMED:
        return _of_a_fault(triage)
    if triage.answer is TriageAnswer.NUMERICS and own is not None and finest is not None:
        return (
            f"The same call moving the logits in {finest.dtype} by more than {finest.budget:.1g} "
            f"(here {finest.max_abs:.1g}), or text that differs in {finest.dtype} as well."
        )
    if triage.answer is TriageAnswer.BEHAVIOUR:
        decisive = next(iter(_decisive(triage)), None)
        without = (
            f"the same difference in a call without this: {decisive.title}"
            if decisive
            else ("the same difference in a call that requests nothing of the kind")
        )
        return f"{without[0].upper()}{without[1:]}."
    if not triage.called:
        return (
            "One call in which your tokens or your text change on your machine. No prompt and no "
            "call of yours was given."
        )
    return f"Other tokens or text than here in the same call on your machine: {triage.called}."


def _of_a_fault(triage: Triage) -> str:
    finding = triage.finding
    case = next((each for each in finding.cases if each.beyond), None) if finding else None
    if case is None or case.max_abs is None:
        return "The same finding gone under another release: the fault is then in the code here."
    if case.nonfinite:
        return f"`{case.name}` without values that are not finite (here {case.nonfinite})."
    limit = getattr(case, "budget", None)
    within = f" (a healthy model stays within {limit:.1g})" if limit else ""
    differ = f"here the two differ by {case.max_abs:.2g}{within}"
    return f"`{case.name}` agreeing on your machine: {differ}."
