"""The pictures of the HTML report as data for its template, on logarithmic scales."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from attncheck.core.divergence import Profile
from attncheck.core.finding import Finding
from attncheck.core.measurement import AtMost, Comparison, Figure, Measurement, Quantity, verdict_of
from attncheck.core.verdict import WORST_FIRST, Verdict
from attncheck.report.numbers import number

MOST_STRIPS = 24
MOST_ROWS = 96
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 480, 200, 62, 10, 26
UNITS = {"B": "Bytes", "x the cache": "Times the whole cache"}


class StripCell(NamedTuple):
    """One stretch of positions in a strip: x and width in positions, heat between 0 (the budget)
    and 1 (the largest).
    """

    x: int
    width: int
    heat: float
    title: str


class Strip(NamedTuple):
    """The divergence of one case along positions."""

    name: str
    verdict: str
    cells: tuple[StripCell, ...]
    cuts: tuple[int, ...]


class Strips(NamedTuple):
    """Several cases along one axis of positions."""

    rows: tuple[Strip, ...]
    end: int
    hidden: int


class Curve(NamedTuple):
    """One case as a line over a logarithmic axis, in the units of its drawing."""

    name: str
    points: str
    budget_y: float
    budget: str
    cuts: tuple[float, ...]
    ticks: tuple[tuple[float, str], ...]
    ends: tuple[tuple[float, str], ...]


class Bar(NamedTuple):
    """One bar: its share of the longest, and the share at which its limit stands."""

    name: str
    text: str
    share: float
    limit: float | None = None
    broken: bool = False
    pale: bool = False


class Bars(NamedTuple):
    """Bars of one unit."""

    unit: str
    rows: tuple[Bar, ...]


def strips(finding: Finding) -> Strips | None:
    """Where along the positions the cases of a finding diverge, the worst verdicts first."""
    cases = sorted(_profiled(finding), key=lambda case: WORST_FIRST.index(verdict_of(case)))
    if not cases:
        return None
    shown = cases[:MOST_STRIPS]
    end = max(_end(case.divergence.profile) for case in shown)
    top = max(max(case.divergence.profile.values) for case in shown)
    rows = tuple(_strip(case, top) for case in shown)
    return Strips(rows=rows, end=end, hidden=len(cases) - len(shown))


def _profiled(finding: Finding) -> list[Comparison]:
    """The comparisons that did not pass and have a profile to draw."""
    return [
        case
        for case in finding.cases
        if isinstance(case, Comparison)
        and case.divergence.profile.values
        and case.budget
        and verdict_of(case) is not Verdict.PASS
    ]


def _end(profile: Profile) -> int:
    return profile.start + len(profile.values) * profile.stride


def _strip(case: Comparison, top: float) -> Strip:
    profile = case.divergence.profile
    starts = range(profile.start, _end(profile), profile.stride)
    cells = (
        StripCell(
            x=start,
            width=profile.stride,
            heat=round(_share(value, case.budget, top), 3),
            title=f"{_positions(start, profile.stride)}: {number(value)}",
        )
        for start, value in zip(starts, profile.values, strict=True)
    )
    return Strip(case.name, verdict_of(case).value, tuple(cells), case.cuts)


def _positions(first: int, stride: int) -> str:
    return f"position {first}" if stride == 1 else f"positions {first} to {first + stride - 1}"


def _share(value: float, low: float, high: float) -> float:
    """0 at or below `low`, 1 at `high`, logarithmic between."""
    if value <= low or high <= low:
        return 0.0
    return min(1.0, math.log(value / low) / math.log(high / low))


def curve(finding: Finding) -> Curve | None:
    """The case that diverges most of those that did not pass, as a line."""
    broken = [case for case in _profiled(finding) if len(case.divergence.profile.values) > 1]

    def order(case: Comparison) -> tuple[bool, float]:
        return verdict_of(case) is Verdict.FAIL, max(case.divergence.profile.values)

    return _drawn(max(broken, key=order)) if broken else None


def _drawn(case: Comparison) -> Curve:
    profile, budget = case.divergence.profile, case.budget
    values, start, end = profile.values, profile.start, _end(profile)
    low = 10.0 ** math.floor(math.log10(min([budget, *(value for value in values if value)])) - 0.3)
    high = 10.0 ** math.ceil(math.log10(max(budget, *values)) + 0.1)
    across, down = (WIDTH - LEFT - 8) / max(1, end - 1 - start), HEIGHT - TOP - BOTTOM

    def x(position: float) -> float:
        return round(LEFT + (position - start) * across, 1)

    def y(value: float) -> float:
        return round(TOP + down * (1 - _share(max(value, low), low, high)), 1)

    powers = range(round(math.log10(low)), round(math.log10(high)) + 1)
    places = range(start, end, profile.stride)
    return Curve(
        name=case.name,
        points=" ".join(f"{x(at)},{y(value)}" for at, value in zip(places, values, strict=True)),
        budget_y=y(budget),
        budget=number(budget),
        cuts=tuple(x(cut) for cut in case.cuts if start < cut < end),
        ticks=tuple(
            (y(10.0**power), f"1e{power}") for power in powers[:: max(1, len(powers) // 5)]
        ),
        ends=((x(start), str(start)), (x(end - 1), str(end - 1))),
    )


def bars(finding: Finding) -> tuple[Bars, ...]:
    """Sizes, heads and factors of one unit next to each other, with their limits."""
    cases = [case for case in finding.cases if isinstance(case, Quantity)]
    units = dict.fromkeys(case.unit for case in cases)
    groups = ([case for case in cases if case.unit == unit] for unit in units)
    return tuple(
        _bars(group)
        for group in groups
        if len(group) + len(_beside(group[:1])) > 1 and any(case.value for case in group)
    )


def _beside(cases: Sequence[Quantity]) -> list[tuple[str, float]]:
    return [pair for case in cases if isinstance(case, Figure) for pair in case.beside]


def _limit(case: Quantity) -> float | None:
    return case.limit if isinstance(case, AtMost) else None


def _bars(cases: Sequence[Quantity]) -> Bars:
    beside = _beside(cases)
    longest = max(
        *(max(case.value, _limit(case) or 0.0) for case in cases),
        *(each for _, each in beside),
        0.0,
    )
    return Bars(
        unit=UNITS.get(cases[0].unit, cases[0].unit),
        rows=(
            *(_bar(case, longest) for case in cases),
            *(
                Bar(name=name, text=number(value), share=value / longest, pale=True)
                for name, value in beside
            ),
        ),
    )


def _bar(case: Quantity, longest: float) -> Bar:
    limit = _limit(case)
    return Bar(
        name=case.name,
        text=number(case.value),
        share=case.value / longest,
        limit=None if limit is None else limit / longest,
        broken=verdict_of(case) in (Verdict.FAIL, Verdict.WARN),
    )


def layers(finding: Finding) -> Bars | None:
    """The divergence of the hidden states after each layer, on a logarithmic scale."""
    found = finding.location.layers if finding.location is not None else ()
    finite = [value for value in found if math.isfinite(value) and value > 0]
    if not finite:
        return None
    low, high = min(finite) / 10, max(finite)
    rows = (
        Bar(
            name=f"layer {index}",
            text=number(value),
            share=1.0 if not math.isfinite(value) else _share(value, low, high),
        )
        for index, value in enumerate(found)
    )
    return Bars(unit="largest difference of hidden states, logarithmic", rows=tuple(rows))


def spans(cases: Iterable[Measurement]) -> list[AtMost]:
    """The cases in which a probe drew visible keys."""
    return [
        case for case in cases if isinstance(case, AtMost) and 0 < len(case.visible) <= MOST_ROWS
    ]
