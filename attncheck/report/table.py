"""The report on a terminal: one table a probe, one summary line. Reads nothing but the report."""

from __future__ import annotations

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from attncheck.core.finding import Comparison, Finding, Measurement, Verdict, verdict_of
from attncheck.report.model import Report, TargetReport
from attncheck.report.numbers import CaseCells, cells, count, number, seconds

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


def mark(verdict: Verdict) -> Text:
    """A verdict as it stands in a table."""
    return Text(verdict.value.upper(), style=STYLES[verdict])


def target_heading(target: TargetReport) -> Text:
    """One line: what was loaded and how it is asked."""
    model, settings = target.model, target.settings
    kv = (
        f" on {model['kv_heads']} KV"
        if model.get("kv_heads") not in (None, model.get("heads"))
        else ""
    )
    parts = [
        str(model.get("class", "")),
        f"{count(int(model.get('parameters') or 0))} parameters",
        f"{model.get('layers')} layers" if model.get("layers") else "",
        f"{model.get('heads')} heads{kv}" if model.get("heads") else "",
        f"window {model['window']}" if model.get("window") else "",
        " ".join(str(settings[key]) for key in ("dtype", "attn", "device") if settings.get(key)),
        f"{settings.get('length')} tokens, seed {settings.get('seed')}",
    ]
    heading = Text(overflow="fold").append(target.target, style="bold")
    return heading.append("  " + ", ".join(part for part in parts if part), style="dim")


def finding_block(finding: Finding, verbose: bool = False) -> list[RenderableType]:
    """A probe: its verdict line, its cases, what explains it."""
    blocks: list[RenderableType] = [_verdict_line(finding)]
    shown = _shown_cases(finding.cases, verbose)
    if shown:
        blocks.append(Padding(_cases(shown, len(finding.cases) - len(shown)), (0, 0, 0, 2)))
    blocks += [
        Padding(Text(line, style="dim" if faint else ""), (0, 0, 0, 2))
        for line, faint in _footnotes(finding)
    ]
    return [*blocks, Text()]


def _verdict_line(finding: Finding) -> Text:
    line = (
        Text(overflow="fold")
        .append(mark(finding.verdict))
        .append(f" {finding.probe}", style="bold")
    )
    return line.append(f"  {finding.summary}")


def _footnotes(finding: Finding) -> list[tuple[str, bool]]:
    """(line, whether it is secondary)."""
    notes: list[tuple[str, bool]] = []
    if finding.known is not None:
        notes.append((f"does not count: {finding.known}", False))
    if finding.diagnosis is not None:
        notes.append((_diagnosis(finding), False))
    if finding.location is not None:
        notes.append((_location(finding), False))
    notes += [(line, False) for line in handed_over(finding)]
    notes += [(f"{case.name}: {case.note}", True) for case in finding.cases if _telling(case)][
        :SHOWN_OTHERS
    ]
    compared = [case for case in finding.cases if isinstance(case, Comparison)]
    sources = sorted({case.budget_from for case in compared if case.budget_from})
    tail = [
        _controls(finding),
        f"budget: {'; '.join(sources)}" if sources else "",
        seconds(finding.seconds),
    ]
    notes.append((" | ".join(part for part in tail if part), True))
    return notes


def handed_over(finding: Finding) -> list[str]:
    """Where the script is that shows the failure without this tool, or why there is none; nothing
    where none was asked for.
    """
    told = finding.replay
    shown = [f"without attncheck: python {told['script']}"] if "script" in told else []
    return [*shown, *([f"no script: {told['no_script']}"] if "no_script" in told else [])]


def _telling(case: Measurement) -> bool:
    """Notes are shown of what did not hold, of figures, and of skipped cases."""
    return bool(case.note) and (verdict_of(case) is not Verdict.PASS or not case.judged)


def _controls(finding: Finding) -> str:
    if not finding.controls and not finding.controls_missing:
        return ""
    caught = sum(control.detected for control in finding.controls)
    names = ", ".join(
        control.fault + ("" if control.detected else " (missed)") for control in finding.controls
    )
    missing = f"; not planted: {finding.controls_missing}" if finding.controls_missing else ""
    return f"controls {caught}/{len(finding.controls)}" + (f" ({names})" if names else "") + missing


def _diagnosis(finding: Finding) -> str:
    found = finding.diagnosis
    assert found is not None
    residual = f" to {number(found.residual)}" if found.residual is not None else ""
    other = found.runner_up or {}
    rival = f"; next best {other.get('fault')} {number(other.get('residual'))}" if other else ""
    return f"{found.how}: {found.fault}{residual}{rival}. {found.advice}"


def _location(finding: Finding) -> str:
    place = finding.location
    assert place is not None
    query = f", query position {place.query_position}" if place.query_position is not None else ""
    source = (
        f", source position {place.source_position}" if place.source_position is not None else ""
    )
    return (
        f"first diverges in {place.module}{query}{source}{'; ' + place.note if place.note else ''}"
    )


def _shown_cases(cases: tuple[Measurement, ...], verbose: bool) -> list[Measurement]:
    """All of a short list; of a long one what did not pass, and the passes nearest to their
    budgets.
    """
    if verbose or len(cases) <= SHOWN_OTHERS:
        return list(cases)
    others = [case for case in cases if verdict_of(case) is not Verdict.PASS or not case.judged][
        :SHOWN_OTHERS
    ]
    passes = sorted(
        (c for c in cases if verdict_of(c) is Verdict.PASS and c.judged),
        key=lambda c: c.excess,
        reverse=True,
    )
    chosen = {case.name for case in [*others, *passes[:SHOWN_PASSES]]}
    return [case for case in cases if case.name in chosen]


def _cases(cases: list[Measurement], hidden: int) -> Table:
    """Logit divergences, or plain values where that is what the probe measures."""
    plain = not any(isinstance(case, Comparison) for case in cases)
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", show_edge=False)
    table.add_column("case", overflow="fold", ratio=1)
    for heading in ("verdict", *(QUANTITIES if plain else DIVERGENCE)):
        table.add_column(
            heading,
            justify="left" if heading == "verdict" else "right",
            no_wrap=heading != "measured",
            max_width=32,
        )
    for case in cases:
        shown = cells(case)
        table.add_row(
            case.name, mark(verdict_of(case)), *(_quantity(shown) if plain else _divergence(shown))
        )
    if hidden:
        table.add_row(Text(f"… {hidden} more cases (-v shows all)", style="dim"))
    return table


QUANTITIES = ("measured", "expected")
DIVERGENCE = ("max|Δ|", "mean|Δ|", "KL", "flips", "first", "budget")


def _quantity(shown: CaseCells) -> tuple[str, ...]:
    return shown.measured, "-" if shown.allowed == "-" else f"at most {shown.allowed}"


def _divergence(shown: CaseCells) -> tuple[str, ...]:
    return shown.amount, shown.mean, shown.kl, shown.flips, shown.first, shown.allowed


def target_line(target: TargetReport) -> Text:
    """A target in one line: what its probes came to, and what did not pass."""
    line = (
        Text(overflow="fold").append(mark(target.verdict)).append(f" {target.target}", style="bold")
    )
    if target.error is not None:
        return line.append(f"  {target.error}")
    verdicts = [finding.verdict for finding in target.results]
    ran = sum(verdict is not Verdict.SKIP for verdict in verdicts)
    line.append(f"  {ran} of {len(verdicts)} probes ran in {seconds(target.seconds)}", style="dim")
    for finding in target.results:
        if finding.verdict not in (Verdict.PASS, Verdict.SKIP, Verdict.WARN):
            line.append("\n    ").append(mark(finding.verdict)).append(
                f" {finding.probe}  {finding.summary}"
            )
    return line


def summary_line(report: Report) -> Text:
    """The last line: how many probes came to what, and how long it took."""
    line = Text()
    counts = {Verdict(name): amount for name, amount in report.summary.items() if amount}
    for position, (verdict, amount) in enumerate(counts.items()):
        line.append(", " if position else "").append(
            f"{amount} {verdict.value}", style=STYLES[verdict]
        )
    broken = sum(target.error is not None for target in report.targets)
    if broken:
        line.append(", " if counts else "").append(
            f"{broken} not loaded", style=STYLES[Verdict.ERROR]
        )
    known = sum(
        finding.known is not None for target in report.targets for finding in target.results
    )
    if known:
        line.append(f" ({known} known)", style="dim")
    if not line:
        line.append("nothing ran", style=STYLES[Verdict.SKIP])
    models = len(report.targets)
    return line.append(
        f" on {models} model{'s' if models != 1 else ''} in {seconds(report.seconds)}", style="dim"
    )


def print_report(report: Report, console: Console, verbose: bool = False) -> None:
    """The whole report, as it is printed live."""
    for target in report.targets:
        print_target(target, console, verbose)
    console.print(summary_line(report))


def print_target(target: TargetReport, console: Console, verbose: bool = False) -> None:
    """Heading and findings of one target."""
    print_heading(target, console)
    for finding in target.results:
        for block in finding_block(finding, verbose):
            console.print(block)


def print_heading(target: TargetReport, console: Console) -> None:
    """The heading of a target, or the line that says why it could not be loaded."""
    if target.error is not None:
        console.print(
            mark(Verdict.ERROR).append(f" {target.error}", style="not bold default"), soft_wrap=True
        )
        return
    console.print(target_heading(target))
    for note in target.notes:
        console.print(Text(f"  {note}", style="dim"))
    console.print()
