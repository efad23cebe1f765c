"""The report on a terminal: a heading for each target, its findings, one summary line."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.text import Text

from attncheck.core.verdict import Verdict
from attncheck.report.model import Report, TargetReport
from attncheck.report.numbers import count, number, seconds
from attncheck.report.table import STYLES, finding_block, mark

QUIET = (Verdict.PASS, Verdict.SKIP, Verdict.WARN)


def target_heading(target: TargetReport) -> Text:
    """One line: what was loaded, and how."""
    model, settings = target.model, target.settings
    shared = model.get("kv_heads") not in (None, model.get("heads"))
    kv = f" on {model['kv_heads']} KV" if shared else ""
    parts = [
        str(model.get("class", "")),
        f"{count(int(model['parameters']))} parameters" if model.get("parameters") else "",
        f"{model.get('layers')} layers" if model.get("layers") else "",
        f"{model.get('heads')} heads{kv}" if model.get("heads") else "",
        f"window {model['window']}" if model.get("window") else "",
        " ".join(str(settings[key]) for key in ("dtype", "attn", "device") if settings.get(key)),
        f"{settings['length']} tokens" if settings.get("length") else "",
        f"seed {settings.get('seed')}",
    ]
    heading = Text(overflow="fold").append(target.target, style="bold")
    return heading.append("  " + ", ".join(part for part in parts if part), style="dim")


def target_line(target: TargetReport) -> Text:
    """One target of many: how many probes ran, and a line for each that did not pass."""
    line = Text(overflow="fold").append(mark(target.verdict))
    line.append(f" {target.target}", style="bold")
    if target.error is not None:
        line.append(f"  {target.error}")
        if not target.results:
            return line
    ran = sum(finding.verdict is not Verdict.SKIP for finding in target.results)
    what = f"{ran} of {len(target.results)} probes ran in {seconds(target.seconds)}"
    line.append(f"  {what}", style="dim")
    for finding in target.results:
        if finding.verdict not in QUIET:
            line.append("\n    ").append(mark(finding.verdict))
            line.append(f" {finding.probe}  {finding.summary}")
    return line


def summary_line(report: Report) -> Text:
    """The last line: how many probes have each verdict, and how long the run took. A run that was
    stopped says first how much of it was done.
    """
    counts = [
        (f"{amount} {name}", STYLES[Verdict(name)])
        for name, amount in report.summary.items()
        if amount
    ]
    broken = Counter(target.broken for target in report.targets if target.broken)
    counts += [(f"{amount} {how}", STYLES[Verdict.ERROR]) for how, amount in broken.items()]
    line = Text(", ").join(Text(words, style=style) for words, style in counts)
    known = sum(finding.known is not None for _, finding in report.findings)
    if known:
        line.append(f" ({known} known)", style="dim")
    if not line:
        line.append("nothing ran", style=STYLES[Verdict.SKIP])
    if report.incomplete:
        words = f"incomplete: {report.incomplete}; "
        line = Text(words, style=STYLES[Verdict.ERROR]).append(line)
    models = f"{len(report.targets)} model{'s' if len(report.targets) != 1 else ''}"
    return line.append(f" on {models} in {seconds(report.seconds)}", style="dim")


def closing_lines(report: Report, width: int, whole_traps: bool = False) -> list[Text]:
    """The traps of the library, and the summary line."""
    return [*trap_lines(report, width, whole_traps), summary_line(report)]


def trap_lines(report: Report, width: int, whole: bool = False) -> list[Text]:
    """A line for each trap; `whole` says what the reference gave and which targets met it."""
    if not report.traps:
        return []
    library = f"transformers {report.environment.get('transformers', '')}".strip()
    amount = f"{len(report.traps)} trap{'s' if len(report.traps) > 1 else ''}"
    title = f"{amount} of {library}, whatever the model"
    if not whole and any(finding.verdict is Verdict.FAIL for _, finding in report.findings):
        return [Text(f"{title} (--traps lists them)", style="dim")]
    lines = [Text(f"{title} (explain trap-NAME):", style="dim")]
    for trap in report.traps:
        line = Text(f"  {trap.trap}: {trap.advice or trap.call}", no_wrap=True, style="dim")
        line.truncate(width, overflow="ellipsis")
        lines.append(line)
        if whole:
            value = number(trap.max_abs)
            names = ", ".join(trap.targets)
            lines.append(Text(f"    {trap.reference} does it as well: {value}; met by {names}"))
    return lines


def print_target(target: TargetReport, console: Console, verbose: bool = False) -> None:
    """Heading and findings of one target."""
    print_heading(target, console)
    for finding in target.results:
        for block in finding_block(finding, verbose):
            console.print(block)


def print_heading(target: TargetReport, console: Console, apart: bool = True) -> None:
    """The heading of a target, or the line that says why it could not be loaded; `apart` leaves a
    line below it.
    """
    if target.error is not None:
        line = mark(Verdict.ERROR).append(f" {target.error}", style="not bold default")
        console.print(line, soft_wrap=True)
        return
    console.print(target_heading(target))
    for note in target.notes:
        console.print(Text(f"  {note}", style="dim"))
    if apart:
        console.print()
