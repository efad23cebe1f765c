"""The report as Markdown, for issues, pull requests and step summaries."""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.finding import Finding
from attncheck.core.measurement import Measurement, verdict_of
from attncheck.core.verdict import Verdict
from attncheck.core.visible import made_visible, one_line
from attncheck.report.model import Outcome, Report, TargetReport
from attncheck.report.numbers import cells, number, seconds
from attncheck.report.table import location_text, script_lines

SIGNS: dict[Outcome, str] = {
    "failed": "❌",
    "crashed": "💥",
    "known": "🔕",
    "skipped": "⏭️",
    "passed": "✅",
}
UNSURE = (Verdict.WARN, Verdict.NOISE, Verdict.VACUOUS)
MOST_CASES = 12


def markdown(report: Report) -> str:
    """The whole report: a summary, a table for each target, details of what did not pass."""
    return "\n".join(_lines(made_visible(report))).rstrip()


def _lines(report: Report) -> Iterator[str]:
    counts = ", ".join(f"{amount} {name}" for name, amount in report.summary.items() if amount)
    where = f"on {len(report.targets)} models in {seconds(report.seconds)}"
    yield f"## attncheck: {'failed' if report.exit_code else 'passed'}"
    yield ""
    if report.incomplete:
        yield f"**incomplete: {report.incomplete}**"
        yield ""
    yield f"{counts or 'nothing ran'} {where}, exit code {report.exit_code}."
    yield ""
    yield from (f"- {escape(note)}" for note in report.notes)
    for target in report.targets:
        yield from _target(report, target)
    versions = [
        f"{name} {report.environment[name]}"
        for name in ("python", "torch", "transformers")
        if name in report.environment
    ]
    yield ""
    yield f"<sub>attncheck {report.attncheck}, {', '.join(versions)}: `{report.command}`</sub>"


def _target(report: Report, target: TargetReport) -> Iterator[str]:
    yield ""
    yield f"### {escape(target.label)}: {target.verdict.value}"
    yield ""
    if target.error is not None:
        yield f"💥 {target.broken}: {escape(target.error)}"
    if not target.results:
        return
    yield from (f"- {escape(note)}" for note in target.notes)
    yield ""
    yield "| | probe | verdict | what | time |"
    yield "|---|---|---|---|---|"
    yield from (_row(report, finding) for finding in target.results)
    for finding in target.results:
        if finding.verdict not in (Verdict.PASS, Verdict.SKIP):
            yield from _details(finding)


def _row(report: Report, finding: Finding) -> str:
    outcome = report.outcome(finding)
    unsure = outcome == "passed" and finding.verdict in UNSURE
    what = escape(finding.summary + (f" ({finding.known})" if finding.known else ""))
    sign, verdict = "⚠️" if unsure else SIGNS[outcome], finding.verdict.value
    return f"| {sign} | `{finding.probe}` | {verdict} | {what} | {seconds(finding.seconds)} |"


def _details(finding: Finding) -> Iterator[str]:
    yield ""
    yield f"<details><summary><code>{finding.probe}</code>: {finding.verdict.value}</summary>"
    yield ""
    for line in _explained(finding):
        yield line
        yield ""
    broken = finding.broken
    if broken:
        yield "| case | verdict | largest difference | budget | flips | first position |"
        yield "|---|---|---:|---:|---:|---:|"
        yield from (_case(case) for case in broken[:MOST_CASES])
    if len(broken) > MOST_CASES:
        yield f"| … {len(broken) - MOST_CASES} more | | | | | |"
    if finding.error:
        yield "```\n" + finding.error.strip().replace("```", "'''") + "\n```"
    yield ""
    yield "</details>"


def _explained(finding: Finding) -> Iterator[str]:
    found = finding.diagnosis
    if found is not None:
        residual = f" to {number(found.residual)}" if found.residual is not None else ""
        yield f"**{found.how}: `{found.name}`**{residual}. {escape(found.advice)}"
    if finding.location is not None:
        yield escape(location_text(finding.location))
    yield from map(escape, script_lines(finding))


def _case(case: Measurement) -> str:
    shown = cells(case)
    texts = (shown.measured, shown.allowed, shown.flips, shown.first)
    return f"| {' | '.join((escape(case.name), verdict_of(case).value, *texts))} |"


def escape(text: str) -> str:
    """Text that stays text inside a Markdown table."""
    kept = one_line(text)
    for sign in ("\\", "|", "<", "*", "_", "`", "["):
        kept = kept.replace(sign, f"\\{sign}" if sign != "<" else "&lt;")
    return kept
