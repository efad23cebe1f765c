"""What a person needs of the findings that fail: what is wrong, where, the evidence, what to do."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.text import Text

from attncheck.core import registry
from attncheck.core.finding import Diagnosis, Finding, Location
from attncheck.core.measurement import AtMost, Comparison, Measurement, verdict_of
from attncheck.core.settings import Settings, option_name
from attncheck.report.model import TargetReport
from attncheck.report.numbers import number
from attncheck.report.screen import alike, by_cause, opened, style_of, times
from attncheck.report.table import fault_text, script_lines

PACKAGES = "site-packages/"
"""Where installed code stands: it is named by its package alone."""
EVIDENCE = 5
OPTIONS = {"compiled": "--compile", "cache": ""}
"""The options of settings that have another name, or none."""
UNIT = 18
"""A longer unit is a sentence, which the finding says already."""
INDENT = 4


class FailureCause(NamedTuple):
    """What findings that fail for one reason have in common, sentence first. `how` says what the
    proof is, `size` how large the worst case is, `shared` which reference of the library does the
    same; each is empty where nothing is known of it.
    """

    verdict: str
    title: str
    what: str
    where: str
    how: str
    size: str
    advice: str
    shared: str
    probes: tuple[str, ...]


def failure_causes(target: TargetReport) -> list[FailureCause]:
    """What a person has to look at, one entry a cause, in the order of the terminal."""
    return [_cause(group) for group in by_cause(opened(target.results))]


def _cause(group: Sequence[Finding]) -> FailureCause:
    worst = group[0]
    found = next((each.diagnosis for each in group if each.diagnosis is not None), None)
    place = next((each.location for each in group if each.location is not None), None)
    named = found is not None and found.how != "unexplained"
    broken = [each for each in worst.cases if verdict_of(each) is worst.verdict]
    return FailureCause(
        verdict=worst.verdict.value,
        title=_title(group, found),
        what=_what(worst, found),
        where=place_text(place) if place is not None else "",
        how=f"{found.how}: {fault_text(found)}" if found is not None and named else "",
        size=size_text(broken) if broken else "",
        advice=_advice(found) if found is not None else "",
        shared=_shared(group),
        probes=tuple(each.probe for each in group),
    )


def failure_blocks(target: TargetReport, width: int) -> list[Text]:
    """A block of lines for each cause, the last lines of all being a list of what failed."""
    groups = by_cause(opened(target.results))
    blocks = [line for group in groups for line in _block(group, width)]
    return [*blocks, *(_last_line(target, group, width) for group in groups)]


def _block(group: Sequence[Finding], width: int) -> Iterator[Text]:
    cause = _cause(group)
    yield Text()
    yield Text(cause.title, style=style_of(group[0]))
    yield from _wrapped(cause.what, width)
    if cause.where:
        yield from _wrapped(f"where: {cause.where}", width)
    if cause.how:
        yield from _wrapped(cause.how, width, style="dim")
    yield from _evidence(group, width)
    if cause.advice:
        yield from _wrapped(f"do: {cause.advice}", width)
    if cause.shared:
        yield from _wrapped(cause.shared, width)
    for line in dict.fromkeys(line for each in group for line in script_lines(each)):
        yield from _wrapped(line, width)


def _shared(group: Sequence[Finding]) -> str:
    """Whether every finding of a cause is had by a reference of the library too, in words."""
    names = dict.fromkeys(each.shared_by for each in group)
    if not all(names):
        return ""
    return f"not this model alone: {', '.join(names)} of the library does the same"


def _title(group: Sequence[Finding], found: Diagnosis | None) -> str:
    named = found.fault if found is not None and found.how != "unexplained" else ""
    seen = ", ".join(each.probe for each in group)
    verdict = group[0].verdict.value.upper()
    return f"{verdict} {named}: seen by {seen}" if named else f"{verdict} {seen}"


def _what(worst: Finding, found: Diagnosis | None) -> str:
    return (found.sentence if found is not None else "") or " ".join(worst.summary.split())


def _advice(found: Diagnosis) -> str:
    """The advice without the sentence, which stands above it."""
    return " ".join(found.advice.replace(found.sentence, "", 1).split())


def place_text(place: Location) -> str:
    """Module, position and source line of a failure."""
    query = place.query_position
    parts = (
        place.module,
        f"from token {query} on" if query is not None else "",
        place.source.rpartition(PACKAGES)[2],
        place.note,
    )
    return ", ".join(part for part in parts if part)


def _evidence(group: Sequence[Finding], width: int) -> Iterator[Text]:
    """At most `EVIDENCE` rows, of every probe of the group at least its worst while there is
    room.
    """
    rows = [(each.probe, row) for each in group for row in alike(each.cases)]
    first = dict(reversed(rows))
    others = [row for row in rows if first[row[0]] is not row[1]]
    chosen = [*((probe, first[probe]) for probe in dict.fromkeys(p for p, _ in rows)), *others]
    for probe, (name, cases) in chosen[:EVIDENCE]:
        yield _row(probe, name, cases, width)
    if len(chosen) > EVIDENCE:
        yield Text(f"{' ' * INDENT}… {len(chosen) - EVIDENCE} more rows (-v)", style="dim")


def _row(probe: str, name: str, cases: list[Measurement], width: int) -> Text:
    size = size_text(cases)
    line = Text(" " * INDENT, no_wrap=True).append(probe.ljust(17), style="bold").append(name)
    line.truncate(width - len(size) - 1, overflow="ellipsis", pad=True)
    return line.append(f" {size}")


def size_text(cases: Sequence[Measurement]) -> str:
    """The worst of some cases: its number, in budgets, and the first position that differs."""
    worst = max(cases, key=lambda case: case.excess)
    if worst.nonfinite:
        return f"{worst.nonfinite} not finite"
    if not isinstance(worst, Comparison):
        if not isinstance(worst, AtMost):
            return "raises"
        if len(worst.unit) <= UNIT:
            return f"{number(worst.value)} {worst.unit}"
        return f"{number(worst.value)}, expected at most {number(worst.limit)}"
    if worst.expect == "differ":
        return f"moves by {number(worst.max_abs)}"
    starts = [
        case.divergence.first_position
        for case in cases
        if isinstance(case, Comparison) and case.divergence.first_position is not None
    ]
    where = f", token {min(starts)} on" if starts else ""
    return f"{number(worst.max_abs)} = {times(worst.excess)} rounding{where}"


def _last_line(target: TargetReport, group: Sequence[Finding], width: int) -> Text:
    """One line of the list at the end: fault, module, size, next command."""
    worst, found = group[0], group[0].diagnosis
    known = found is not None and found.how != "unexplained" and bool(found.fault or found.family)
    named = found.name if found is not None and known else worst.probe
    broken = [each for each in worst.cases if verdict_of(each) is worst.verdict]
    place = next((each.location for each in group if each.location is not None), None)
    where = f" in {place.module}" if place is not None and place.module else ""
    size = f": {size_text(broken)}" if broken else ""
    line = Text().append(worst.verdict.value.upper(), style=style_of(worst))
    line.append(f" {named}{where}{size}")
    line.truncate(width, overflow="ellipsis")
    # an implicit probe, and what is asked of an engine, cannot be chosen
    chosen = f"--probe {worst.probe} " if worst.probe in registry.installed() else ""
    given = "".join(f"{each} " for each in _given_options(target))
    command = f"attncheck run {shlex.quote(target.target)} {given}{chosen}-v"
    return line.append(f"\n{' ' * INDENT}{command}", style="dim")


def _given_options(target: TargetReport) -> Iterator[str]:
    """The settings of a target that are not the usual ones, as options of `run`."""
    usual = vars(Settings())
    for name, value in (target.settings.get("asked") or {}).items():
        option = OPTIONS.get(name, option_name(name))
        if name in usual and value not in (usual[name], None, False) and option:
            yield option if value is True else f"{option} {shlex.quote(str(value))}"


def _wrapped(text: str, width: int, style: str = "") -> Iterator[Text]:
    import textwrap

    blank = " " * 2
    lines = textwrap.wrap(
        text,
        width,
        initial_indent=blank,
        subsequent_indent=blank * 2,
        break_on_hyphens=False,
    )
    return (Text(line, style=style) for line in lines)
