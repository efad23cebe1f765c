"""The first screen of a run: one line a probe, then what failed by its cause, then the last lines.

Everything that a line leaves out stands in the tables of `attncheck.report.table` (`-v`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rich.text import Text

from attncheck.core.finding import Finding
from attncheck.core.measurement import Comparison, Measurement, verdict_of
from attncheck.core.verdict import Verdict
from attncheck.report.numbers import number, seconds
from attncheck.report.table import STYLES, mark

PROBE, AMOUNT, CASES, CONTROLS = 17, 22, 9, 9
STEPS = (1e-2, 1e-1, 1.0, 1e3, 1e9)
"""Budgets at which the bar grows by one: three steps within rounding, two beyond it."""
COUNTED = (Verdict.PASS, Verdict.WARN, Verdict.FAIL, Verdict.NOISE)


def finding_line(finding: Finding, width: int) -> Text:
    """One probe: verdict, name, largest difference against what is allowed, cases, controls, time.

    A probe without numbers gives its sentence. What is left of the width is filled by the sentence.
    """
    line = Text(no_wrap=True).append_text(mark(finding.verdict)).append(" ")
    line.pad_right(max(0, 8 - len(line)))
    line.append(finding.probe.ljust(PROBE), style="bold")
    time = seconds(finding.seconds)
    if finding.verdict not in COUNTED or not finding.cases:
        return _closed(line.append(_sentence(finding)), time, width)
    line.append_text(amount_text(finding.cases))
    line.append(_cases(finding).rjust(CASES), style="dim")
    line.append(_controls(finding).rjust(CONTROLS), style="dim")
    if width > 100 or (finding.known is not None):
        line.append(f"  {_sentence(finding)}", style="dim")
    return _closed(line, time, width)


def _closed(line: Text, time: str, width: int) -> Text:
    """The line cut to the width, with the time at its end."""
    line.truncate(width - len(time) - 1, overflow="ellipsis", pad=True)
    return line.append(f" {time}", style="dim")


def _sentence(finding: Finding) -> str:
    known = f"does not count: {finding.known}; " if finding.known is not None else ""
    return f"{known}{' '.join(finding.summary.split())}"


def _cases(finding: Finding) -> str:
    asked, left = len(finding.cases), len(finding.left)
    return f"{asked} of {asked + left}" if left else f"{asked} cases"


def _controls(finding: Finding) -> str:
    if not finding.controls:
        return ""
    return f"{sum(each.detected for each in finding.controls)}/{len(finding.controls)} ctrl"


def amount_text(cases: Iterable[Measurement]) -> Text:
    """The largest difference among cases that must be equal, as a bar and in budgets; the largest
    number against its limit where there are none, or where it alone is beyond.
    """
    judged = [case for case in cases if case.expect in ("equal", "at-most")]
    if not judged:
        return Text(" " * AMOUNT)
    equal = [case for case in judged if isinstance(case, Comparison)]
    broken = [case for case in judged if case.excess > 1]
    beyond = [case for case in broken if isinstance(case, Comparison)] or broken
    case = max(beyond or equal or judged, key=lambda each: each.excess)
    worst, unit = case.excess, "rounding" if isinstance(case, Comparison) else "limit"
    text = Text(bar(worst), style="red" if worst > 1 else "green")
    return text.append(f" {times(worst)} {unit}".ljust(AMOUNT - len(STEPS)), style="default")


def bar(excess: float) -> str:
    """Five cells, one for each of `STEPS` that is passed."""
    filled = sum(excess > step for step in STEPS)
    return "■" * filled + "·" * (len(STEPS) - filled)


def times(excess: float) -> str:
    """`0.18x`, `1e14x`, `inf`: how many budgets a difference is."""
    if not math.isfinite(excess):
        return "inf"
    return (
        f"{excess:.0e}x".replace("e+0", "e").replace("e+", "e")
        if excess >= 1e3
        else (f"{number(float(f'{excess:.2g}'))}x")
    )


def by_cause(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Findings that fail, grouped by the fault that explains them; a finding without one stands
    alone.
    """
    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        found = finding.diagnosis
        named = found is not None and found.how != "unexplained" and found.fault
        groups.setdefault(named or f" {finding.probe}", []).append(finding)
    return list(groups.values())


def opened(findings: Sequence[Finding]) -> list[Finding]:
    """The findings that a person has to look at."""
    quiet = (Verdict.PASS, Verdict.SKIP, Verdict.NOISE)
    return [each for each in findings if each.verdict not in quiet and each.known is None]


def style_of(finding: Finding) -> str:
    """The colour of a finding's verdict."""
    return STYLES[finding.verdict]


def alike(cases: Sequence[Measurement]) -> list[tuple[str, list[Measurement]]]:
    """The broken cases of a probe in rows: those that begin with the same word and have the same
    verdict are one row; the worst row comes first.
    """
    rows: dict[tuple[str, Verdict], list[Measurement]] = {}
    for case in cases:
        if (verdict := verdict_of(case)) not in (Verdict.PASS, Verdict.SKIP):
            rows.setdefault((case.name.split(maxsplit=1)[0], verdict), []).append(case)
    totals = [case.name.split(maxsplit=1)[0] for case in cases if case.expect != "skip"]
    named = [(_row_name(word, row, totals.count(word)), row) for (word, _), row in rows.items()]
    return sorted(named, key=lambda each: -max(case.excess for case in each[1]))


def _row_name(word: str, row: list[Measurement], total: int) -> str:
    return row[0].name if len(row) == 1 else f"{len(row)} of {total} cases `{word} …`"
