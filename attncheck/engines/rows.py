"""Log-probabilities of an engine compared row by row, where each side may know other tokens.

A token that one side does not list is known to be no better than the worst that it lists: what
follows from that counts as difference, and nothing more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from attncheck.core.divergence import Divergence
from attncheck.core.measurement import RESOLUTION, AtMost, Comparison, Measurement, skipped
from attncheck.core.verdict import Verdict
from attncheck.engines.engine import LogProbs

UNIT = "log-probabilities"


@final
@dataclass(frozen=True, kw_only=True)
class RowGap:
    """How far two rows are apart: largest and mean difference in nats, KL(want || got), whether the
    best token differs, how many values are not finite, how many tokens were compared.
    """

    max_abs: float
    mean_abs: float
    kl: float
    flip: bool
    nonfinite: int
    tokens: int


@final
@dataclass(frozen=True, kw_only=True)
class RowBudget:
    """What rounding explains: the largest difference, and the mean KL over rows (both in nats)."""

    max_abs: float
    kl: float
    source: str


def row_gap(got: LogProbs, want: LogProbs) -> RowGap:
    """Compare two rows over the tokens that either of them lists."""
    lost = sum(not math.isfinite(value) for row in (got, want) for value in row.values())
    got, want = _finite(got), _finite(want)
    if not got or not want:
        return RowGap(max_abs=0.0, mean_abs=0.0, kl=0.0, flip=False, nonfinite=lost, tokens=0)
    shared = got.keys() & want.keys()
    gaps = [abs(got[token] - want[token]) for token in shared]
    gaps += [*_unlisted(want, got), *_unlisted(got, want)]
    return RowGap(
        max_abs=max(gaps, default=0.0),
        mean_abs=sum(gaps) / max(1, len(gaps)),
        kl=_kl(got, want),
        flip=max(got, key=lambda token: got[token]) != max(want, key=lambda token: want[token]),
        nonfinite=lost,
        tokens=len(gaps),
    )


def _finite(row: LogProbs) -> dict[int, float]:
    return {token: value for token, value in row.items() if math.isfinite(value)}


def _unlisted(row: LogProbs, other: LogProbs) -> list[float]:
    """By how much tokens of one row, at least, are better than the other one lets them be."""
    worst = min(other.values())
    return [value - worst for token, value in row.items() if token not in other and value > worst]


def _kl(got: LogProbs, want: LogProbs) -> float:
    """KL(want || got) over the shared tokens and the rest taken as one; negative is rounding."""
    shared = got.keys() & want.keys()
    total = sum(math.exp(want[token]) * (want[token] - got[token]) for token in shared)
    rests = [1.0 - sum(math.exp(row[token]) for token in shared) for row in (want, got)]
    if min(rests) > 1e-6:
        total += rests[0] * (math.log(rests[0]) - math.log(rests[1]))
    return max(0.0, total)


def rows_case(
    name: str,
    got: Sequence[LogProbs],
    want: Sequence[LogProbs],
    budget: RowBudget,
    *,
    places: Sequence[int] = (),
    note: str = "",
    broken: Verdict = Verdict.FAIL,
) -> Measurement:
    """One case: rows against rows. Where the budget is small against the log-probabilities the
    largest difference decides, else the mean KL over the rows: a single token is too noisy then.
    `places` are the positions of the rows.
    """
    pairs = list(zip(got, want, strict=False))
    if not pairs:
        return skipped(name, note or "no row could be compared")
    gaps = [row_gap(mine, theirs) for mine, theirs in pairs]
    scale = max((abs(value) for row in want for value in row.values()), default=0.0)
    lost, compared = sum(gap.nonfinite for gap in gaps), sum(gap.tokens > 0 for gap in gaps)
    kl = sum(gap.kl for gap in gaps) / len(gaps)
    if budget.max_abs > RESOLUTION * scale:
        return AtMost(
            name,
            kl,
            f"nats of KL, mean of {compared} rows",
            limit=budget.kl,
            positions=compared,
            nonfinite=lost,
            note=note,
            broken=broken,
        )
    beyond = (place for place, gap in enumerate(gaps) if gap.max_abs > budget.max_abs)
    first = next(beyond, None)
    divergence = Divergence(
        max_abs=max(gap.max_abs for gap in gaps),
        mean_abs=sum(gap.mean_abs for gap in gaps) / len(gaps),
        kl=max(gap.kl for gap in gaps),
        top1_flips=sum(gap.flip for gap in gaps),
        positions=compared,
        first_position=None if first is None else (places[first] if places else first),
        scale=scale,
        nonfinite=lost,
    )
    return Comparison(
        name, divergence, budget.max_abs, budget.source, unit=UNIT, note=note, broken=broken
    )


def largest_gap(got: Sequence[LogProbs], want: Sequence[LogProbs]) -> float:
    """The largest difference of any row; infinite where a value is not finite or there is none."""
    gaps = [row_gap(mine, theirs) for mine, theirs in zip(got, want, strict=False)]
    if not gaps or any(gap.nonfinite or not gap.tokens for gap in gaps):
        return math.inf
    return max(gap.max_abs for gap in gaps)


def mean_kl(got: Sequence[LogProbs], want: Sequence[LogProbs]) -> float:
    """The mean KL(want || got) over rows; infinite where a value is not finite or there is none."""
    gaps = [row_gap(mine, theirs) for mine, theirs in zip(got, want, strict=False)]
    if not gaps or any(gap.nonfinite or not gap.tokens for gap in gaps):
        return math.inf
    return sum(gap.kl for gap in gaps) / len(gaps)
