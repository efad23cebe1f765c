"""The usual ruling over the cases of a probe, and one case in words."""

from __future__ import annotations

from attncheck.core.finding import Evidence, Ruling
from attncheck.core.measurement import (
    AtMost,
    BrokenCall,
    Comparison,
    Measurement,
    Quantity,
    verdict_of,
)
from attncheck.core.verdict import Verdict, worst_of_model


def judge_cases(evidence: Evidence) -> Ruling:
    """The usual judgement: the worst case decides, and the sentence is about it; about one that
    follows from another probe only where all do.
    """
    cases = evidence.measurements
    verdict = worst_of_model(verdict_of(case) for case in cases)
    if verdict is Verdict.SKIP or (
        verdict is Verdict.PASS and not any(case.judged for case in cases)
    ):
        reasons = [case.note for case in cases if case.expect == "skip"]
        return Ruling(
            verdict=Verdict.SKIP, summary=reasons[0] if reasons else "no case could be judged"
        )
    decided = [case for case in cases if verdict_of(case) is verdict]
    return Ruling(verdict=verdict, summary=_sentence(verdict, decided, cases))


def _sentence(verdict: Verdict, decided: list[Measurement], cases: tuple[Measurement, ...]) -> str:
    compared = [case for case in cases if case.expect != "skip"]
    if verdict is Verdict.PASS:
        equal = [case.excess for case in compared if case.expect == "equal"]
        margin = f"; largest difference {max(equal):.2g}x the budget" if equal else ""
        positions = sum(case.positions for case in compared)
        return f"{len(compared)} cases passed over {positions} positions{margin}"
    own = [case for case in decided if not case.follows]
    worst_case = max(
        own or decided, key=lambda case: case.excess if case.expect != "differ" else -case.excess
    )
    others = f" (and {len(decided) - 1} more)" if len(decided) > 1 else ""
    return f"{worst_case.name}: {describe(worst_case)}{others}"


def describe(case: Measurement) -> str:
    """What happened in one case, in words."""
    if isinstance(case, BrokenCall):
        return case.note
    if case.nonfinite:
        return f"{case.nonfinite} values are not finite"
    if case.positions == 0:
        return "nothing was compared"
    text = _amount(case)
    return f"{text}; {case.note}" if case.note else text


def _amount(case: Measurement) -> str:
    if isinstance(case, Quantity):
        limit = f", expected at most {case.limit:.4g}" if isinstance(case, AtMost) else ""
        return f"{case.value:.4g} {case.unit}{limit}"
    assert isinstance(case, Comparison)
    first = case.divergence.first_position
    where = f" from position {first}" if first is not None else ""
    what = case.unit or "logits"
    if case.expect == "differ":
        moved = f"{what} move by {case.max_abs:.2g}, no more than rounding ({case.budget:.1g})"
        return f"{moved}, where they must change"
    both = ", ".join(f"{each.max_abs:.2g} in {each.dtype}" for each in case.ladder)
    text = f"{what} differ by {case.max_abs:.2g}{where}, rounding explains {case.budget:.1g}"
    return f"{text} ({both})" if both else text
