"""One finding as a table for the terminal, and the same table as plain text."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from attncheck.core.finding import Diagnosis, Finding, Location
from attncheck.core.measurement import Comparison, Measurement, verdict_of
from attncheck.core.verdict import Verdict
from attncheck.report.console import VisibleConsole
from attncheck.report.numbers import CaseCells, cells, number, seconds

STYLES = {
    Verdict.PASS: "green",
    Verdict.FAIL: "bold red",
    Verdict.WARN: "yellow",
    Verdict.NOISE: "cyan",
    Verdict.VACUOUS: "bold magenta",
    Verdict.SKIP: "dim",
    Verdict.ERROR: "bold red",
}
SHOWN_PASSES = 4
SHOWN_OTHERS = 8
WIDTH = 100
QUANTITIES = ("measured", "expected")
DIVERGENCE = ("max|Δ|", "mean|Δ|", "KL", "flips", "first", "budget")


def mark(verdict: Verdict) -> Text:
    """A verdict in its colour."""
    return Text(verdict.value.upper(), style=STYLES[verdict])


def finding_text(finding: Finding, width: int = WIDTH) -> str:
    """A finding as the terminal shows it, without colour."""
    out = io.StringIO()
    console = VisibleConsole(
        file=out, width=width, no_color=True, highlight=False, emoji=False, markup=False
    )
    for block in finding_block(finding):
        console.print(block)
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines())


def finding_block(finding: Finding, verbose: bool = False) -> list[RenderableType]:
    """The verdict line of a probe, its cases, and what explains them."""
    line = Text(overflow="fold").append(mark(finding.verdict))
    line.append(f" {finding.probe}", style="bold").append(f"  {finding.summary}")
    shown = list(finding.cases) if verbose else _shown_cases(finding.cases)
    below: list[RenderableType] = [
        *([_cases(shown, len(finding.cases) - len(shown))] if shown else []),
        *(Text(text) for text in explanations(finding)),
        *(Text(text, style="dim") for text in _secondary(finding)),
    ]
    return [line, *(Padding(each, (0, 0, 0, 2)) for each in below), Text()]


def explanations(finding: Finding) -> list[str]:
    """What explains a finding: a line each."""
    return [
        *([f"does not count: {finding.known}"] if finding.known is not None else []),
        *([_diagnosis(finding.diagnosis)] if finding.diagnosis is not None else []),
        *([location_text(finding.location)] if finding.location is not None else []),
        *script_lines(finding),
    ]


def _secondary(finding: Finding) -> list[str]:
    noted = [case for case in finding.cases if case.note and not _plain_pass(case)]
    compared = [case for case in finding.cases if isinstance(case, Comparison)]
    sources = sorted({case.budget_from for case in compared if case.budget_from})
    budget = f"budget: {'; '.join(sources)}" if sources else ""
    last = (_controls(finding), budget, seconds(finding.seconds))
    return [
        *(f"{case.name}: {case.note}" for case in noted[:SHOWN_OTHERS]),
        " | ".join(part for part in last if part),
    ]


def _plain_pass(case: Measurement) -> bool:
    return case.judged and verdict_of(case) is Verdict.PASS


def script_lines(finding: Finding) -> list[str]:
    """Where the script is that shows the failure without attncheck, or why there is none; nothing
    where none was requested.
    """
    replay = finding.replay
    return [
        *([f"without attncheck: python {replay['script']}"] if "script" in replay else []),
        *([f"no script: {replay['no_script']}"] if "no_script" in replay else []),
    ]


def _controls(finding: Finding) -> str:
    if not finding.controls and not finding.controls_missing:
        return ""
    caught = sum(control.detected for control in finding.controls)
    names = ", ".join(
        control.fault + ("" if control.detected else " (missed)") for control in finding.controls
    )
    missing = f"; not injected: {finding.controls_missing}" if finding.controls_missing else ""
    return f"controls {caught}/{len(finding.controls)}" + (f" ({names})" if names else "") + missing


def _diagnosis(found: Diagnosis) -> str:
    return f"{found.how}: {fault_text(found)}. {found.advice}"


def fault_text(found: Diagnosis) -> str:
    """The fault, the remaining difference, and the nearest other fault."""
    residual = f" to {number(found.residual)}" if found.residual is not None else ""
    other = found.runner_up or {}
    rival = f"; next best {other.get('fault')} {number(other.get('residual'))}" if other else ""
    return f"{found.name}{residual}{rival}"


def location_text(place: Location) -> str:
    """Where a failure first shows."""
    query, source = place.query_position, place.source_position
    parts = (
        f"first diverges in {place.module}",
        f", query position {query}" if query is not None else "",
        f", source position {source}" if source is not None else "",
        f"; {place.note}" if place.note else "",
    )
    return "".join(parts)


def _shown_cases(cases: Sequence[Measurement]) -> list[Measurement]:
    """All of a short list; of a long one those that did not pass, and the passes nearest to their
    budgets.
    """
    if len(cases) <= SHOWN_OTHERS:
        return list(cases)
    others = [case for case in cases if not _plain_pass(case)]
    passes = sorted(filter(_plain_pass, cases), key=lambda case: case.excess, reverse=True)
    chosen = {case.name for case in [*others[:SHOWN_OTHERS], *passes[:SHOWN_PASSES]]}
    return [case for case in cases if case.name in chosen]


def _cases(cases: list[Measurement], hidden: int) -> Table:
    """Logit divergences, or plain numbers where the probe measures only those."""
    plain = not any(isinstance(case, Comparison) for case in cases)
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", show_edge=False)
    table.add_column("case", overflow="fold", ratio=1)
    table.add_column("verdict", no_wrap=True, max_width=32)
    for heading in QUANTITIES if plain else DIVERGENCE:
        table.add_column(heading, justify="right", no_wrap=heading != "measured", max_width=32)
    for case in cases:
        texts = _quantity(cells(case)) if plain else _divergence(cells(case))
        table.add_row(case.name, mark(verdict_of(case)), *texts)
    if hidden:
        table.add_row(Text(f"… {hidden} more cases (-v shows all)", style="dim"))
    return table


def _quantity(shown: CaseCells) -> tuple[str, ...]:
    return shown.measured, "-" if shown.allowed == "-" else f"at most {shown.allowed}"


def _divergence(shown: CaseCells) -> tuple[str, ...]:
    return shown.amount, shown.mean, shown.kl, shown.flips, shown.first, shown.allowed
