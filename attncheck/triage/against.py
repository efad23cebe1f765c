"""A good run against the reported one: whether weights or computation differ, and where first."""

from __future__ import annotations

from attncheck.compare.page import notes, verdict_words
from attncheck.compare.sides import TwoSides, compare_sides
from attncheck.core.divergence import Divergence
from attncheck.core.finding import Diagnosis, Finding, Location
from attncheck.core.measurement import Comparison
from attncheck.core.settings import Settings
from attncheck.core.verdict import Verdict
from attncheck.triage.steps import Log

ADVICE = {
    "order": "Convert again with the model's real number of heads and KV heads: queries and keys "
    "were re-ordered for another.",
    "rank": "One side has an adapter that the other lacks: load it, or merge it.",
    "noise": "The weights were rounded (quantized) before they were merged or saved: merge into "
    "the unquantized base instead.",
    "other": "The weights differ: compare how both files were made before looking at any code.",
    "": "The weights are the same: the code of this module, or a setting of it, changed between "
    "the two runs.",
}


def against_good_run(target: str, other: str, settings: Settings, log: Log) -> Finding | None:
    """The finding of a difference from the good run; None where both agree up to rounding.

    Raises:
        TargetError: the other side cannot be loaded.
    """
    found = compare_sides(other, target, settings, settings, log.says, quick=True)
    words = f"{verdict_words(found)}. {' '.join(notes(found))}".strip()
    differs = found.verdict == "different"
    log.add(f"against {other}", Verdict.FAIL if differs else Verdict.PASS, words)
    return _finding(found, words) if differs else None


def _finding(found: TwoSides, words: str) -> Finding:
    worst = found.comparison.worst
    assert worst is not None
    divergence = Divergence(
        max_abs=worst.max_abs,
        scale=worst.scale,
        positions=max(1, worst.positions),
        top1_flips=worst.flips,
        first_position=worst.first_position,
    )
    case = Comparison(worst.way, divergence, worst.budget)
    first = worst.first
    return Finding(
        probe="against",
        verdict=Verdict.FAIL,
        summary=words,
        cases=(case,),
        diagnosis=_diagnosis(found),
        location=Location(module=first.home, query_position=first.position) if first else None,
    )


def _diagnosis(found: TwoSides) -> Diagnosis:
    if not found.comparison.weights:
        return Diagnosis(fault="computation-differs", how="reproduced", advice=ADVICE[""])
    kinds = [each.kind for each in found.how]
    kind = max(sorted(set(kinds)), key=kinds.count) if kinds else "other"
    return Diagnosis(
        fault="weights-reordered" if kind == "order" else "weights-differ",
        how="reproduced",
        residual=0.0 if kind == "order" else None,
        advice=ADVICE[kind],
    )
