"""The pictures of the HTML report as data for its template: where on a logarithmic scale each
number stands.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

from attncheck.core.finding import Finding, Measurement, Verdict, verdict_of
from attncheck.report.numbers import number

MOST_STRIPS = 24
MOST_ROWS = 96
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 480, 200, 62, 10, 26
FLOOR = 1e-18
UNITS = {"B": "Bytes", "x the cache": "Times the whole cache"}
ORDER = (Verdict.FAIL, Verdict.ERROR, Verdict.WARN, Verdict.NOISE, Verdict.VACUOUS)


@final
@dataclass(frozen=True)
class Cell:
    """One stretch of positions in a strip: x and width in positions, heat between 0 (the budget)
    and 1 (the largest).
    """

    x: int
    width: int
    heat: float
    title: str


@final
@dataclass(frozen=True)
class Strip:
    """The divergence of one case along positions."""

    name: str
    verdict: str
    cells: tuple[Cell, ...]
    cuts: tuple[int, ...]


@final
@dataclass(frozen=True)
class Strips:
    """Several cases along one axis of positions."""

    rows: tuple[Strip, ...]
    end: int
    hidden: int


@final
@dataclass(frozen=True)
class Curve:
    """One case as a line over a logarithmic axis, in the units of its drawing."""

    name: str
    points: str
    budget_y: float
    budget: str
    cuts: tuple[float, ...]
    ticks: tuple[tuple[float, str], ...]
    ends: tuple[tuple[float, str], ...]


@final
@dataclass(frozen=True)
class Bar:
    """One bar: its share of the longest, and the share at which its limit stands."""

    name: str
    text: str
    share: float
    limit: float | None = None
    broken: bool = False
    pale: bool = False


@final
@dataclass(frozen=True)
class Bars:
    """Bars of one unit."""

    unit: str
    rows: tuple[Bar, ...]


@final
@dataclass(frozen=True)
class Reach:
    """Who reads whom in one layer: rows of queries, characters as in `Measurement.reach`."""

    name: str
    rows: tuple[str, ...]
    columns: int


def strips(finding: Finding) -> Strips | None:
    """Where along the positions the cases of a finding diverge, those that did not hold first."""
    cases = [
        case
        for case in finding.cases
        if case.profile and case.budget and verdict_of(case) is not Verdict.PASS
    ]
    if not cases:
        return None
    cases.sort(key=lambda case: ORDER.index(verdict_of(case)))
    shown = cases[:MOST_STRIPS]
    end = max(case.start + len(case.profile) * case.stride for case in shown)
    top = max(max(case.profile) for case in shown)
    rows = tuple(_strip(case, top) for case in shown)
    return Strips(rows=rows, end=end, hidden=len(cases) - len(shown))


def _strip(case: Measurement, top: float) -> Strip:
    budget = case.budget or FLOOR
    cells = (
        Cell(
            x=case.start + index * case.stride,
            width=case.stride,
            heat=round(_share(value, budget, top), 3),
            title=f"{_positions(case, index)}: {number(value)}",
        )
        for index, value in enumerate(case.profile)
    )
    return Strip(case.name, verdict_of(case).value, tuple(cells), case.cuts)


def _positions(case: Measurement, index: int) -> str:
    first = case.start + index * case.stride
    return (
        f"position {first}"
        if case.stride == 1
        else f"positions {first} to {first + case.stride - 1}"
    )


def _share(value: float, low: float, high: float) -> float:
    """0 at or below `low`, 1 at `high`, logarithmic between."""
    if value <= low or high <= low:
        return 0.0
    return min(1.0, math.log(value / low) / math.log(high / low))


def curve(finding: Finding) -> Curve | None:
    """The case that diverges most of those that did not hold, as a line."""
    broken = [
        case
        for case in finding.cases
        if len(case.profile) > 1 and case.budget and verdict_of(case) is not Verdict.PASS
    ]
    if not broken:
        return None
    case = max(broken, key=lambda each: (verdict_of(each) is Verdict.FAIL, max(each.profile)))
    return _drawn(case, case.budget or FLOOR)


def _drawn(case: Measurement, budget: float) -> Curve:
    low = 10.0 ** math.floor(
        math.log10(min([budget, *(value for value in case.profile if value)])) - 0.3
    )
    high = 10.0 ** math.ceil(math.log10(max([budget, *case.profile])) + 0.1)
    end = case.start + len(case.profile) * case.stride
    across, down = (WIDTH - LEFT - 8) / max(1, end - 1 - case.start), HEIGHT - TOP - BOTTOM

    def x(position: float) -> float:
        return round(LEFT + (position - case.start) * across, 1)

    def y(value: float) -> float:
        return round(TOP + down * (1 - _share(max(value, low), low, high)), 1)

    powers = range(round(math.log10(low)), round(math.log10(high)) + 1)
    return Curve(
        name=case.name,
        points=" ".join(
            f"{x(case.start + i * case.stride)},{y(value)}" for i, value in enumerate(case.profile)
        ),
        budget_y=y(budget),
        budget=number(budget),
        cuts=tuple(x(cut) for cut in case.cuts if case.start < cut < end),
        ticks=tuple(
            (y(10.0**power), f"1e{power}") for power in powers[:: max(1, len(powers) // 5)]
        ),
        ends=((x(case.start), str(case.start)), (x(end - 1), str(end - 1))),
    )


def bars(finding: Finding) -> tuple[Bars, ...]:
    """Sizes, heads and factors of one unit beside each other, with their limits."""
    cases = [case for case in finding.cases if case.value is not None]
    units = dict.fromkeys(case.unit for case in cases)
    groups = ([case for case in cases if case.unit == unit] for unit in units)
    return tuple(
        _bars(group)
        for group in groups
        if len(group) + len(group[0].beside) > 1 and any(case.value for case in group)
    )


def _bars(cases: Sequence[Measurement]) -> Bars:
    beside = [pair for case in cases for pair in case.beside]
    longest = max(
        [
            *(max(case.value or 0.0, case.limit or 0.0) for case in cases),
            *(value for _, value in beside),
        ]
    )
    return Bars(
        unit=UNITS.get(cases[0].unit, cases[0].unit),
        rows=tuple(
            Bar(
                name=case.name,
                text=number(case.value),
                share=(case.value or 0.0) / longest,
                limit=None if case.limit is None else case.limit / longest,
                broken=verdict_of(case) in (Verdict.FAIL, Verdict.WARN),
            )
            for case in cases
        )
        + tuple(
            Bar(name=name, text=number(value), share=value / longest, pale=True)
            for name, value in beside
        ),
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


def reaches(cases: Iterable[Measurement]) -> tuple[Reach, ...]:
    """The drawings of who reads whom, where a probe made them."""
    drawn = (case for case in cases if case.reach and len(case.reach) <= MOST_ROWS)
    return tuple(
        Reach(
            f"{case.module}: {case.name}" if case.module else case.name,
            case.reach,
            len(case.reach[0]),
        )
        for case in drawn
    )
