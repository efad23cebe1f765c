"""Several comparisons as one case. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from attncheck.core.measurement import Comparison


def merged(name: str, cases: Iterable[Comparison]) -> Comparison:
    """Several comparisons as one case: the worst one's numbers, with everything that was compared
    or not finite counted.

    Raises:
        ValueError: there is nothing to merge.
    """
    found = list(cases)
    if not found:
        raise ValueError(f"case `{name}` merges nothing")
    worst_case = max(found, key=lambda case: case.excess)
    whole = replace(
        worst_case.divergence,
        positions=sum(case.positions for case in found)
        if all(case.positions for case in found)
        else 0,
        nonfinite=sum(case.nonfinite for case in found),
        top1_flips=sum(case.divergence.top1_flips or 0 for case in found),
    )
    return replace(worst_case, name=name, divergence=whole)
