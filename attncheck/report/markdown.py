"""The report as Markdown, for issues, pull requests and step summaries."""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.finding import Finding, Measurement, Verdict, verdict_of
from attncheck.report.model import Report, TargetReport
from attncheck.report.numbers import cells, number, seconds
from attncheck.report.outcome import Outcome, label, outcome
from attncheck.report.table import handed_over

SIGNS: dict[Outcome, str] = {
    "failed": "❌",
    "crashed": "💥",
    "known": "🔕",
    "skipped": "⏭️",
    "held": "✅",
}
MOST_CASES = 12


def markdown(report: Report) -> str:
    """The whole report: a summary, a table for each target, details of what did not pass."""
    return "\n".join(_lines(report)).rstrip()


def _lines(report: Report) -> Iterator[str]:
    counts = (
        ", ".join(f"{amount} {name}" for name, amount in report.summary.items() if amount)
        or "nothing ran"
    )
    yield f"## attncheck: {'failed' if report.exit_code else 'passed'}"
    yield ""
    yield f"{counts} on {len(report.targets)} models in {seconds(report.seconds)}, exit code {report.exit_code}."
    yield ""
    for note in report.notes:
        yield f"- {escape(note)}"
    for target in report.targets:
        yield from _target(report, target)
    versions = (
        f"{name} {report.environment[name]}"
        for name in ("python", "torch", "transformers")
        if name in report.environment
    )
    yield ""
    yield f"<sub>attncheck {report.attncheck}, {', '.join(versions)}: `{report.command}`</sub>"


def _target(report: Report, target: TargetReport) -> Iterator[str]:
    yield ""
    yield f"### {escape(label(target))}: {target.verdict.value}"
    yield ""
    if target.error is not None:
        yield f"💥 not loaded: {escape(target.error)}"
        return
    for note in target.notes:
        yield f"- {escape(note)}"
    yield ""
    yield "| | probe | verdict | what | time |"
    yield "|---|---|---|---|---|"
    for finding in target.results:
        yield _row(report, finding)
    for finding in target.results:
        if finding.verdict not in (Verdict.PASS, Verdict.SKIP):
            yield from _details(finding)


def _row(report: Report, finding: Finding) -> str:
    what = finding.summary + (f" ({finding.known})" if finding.known else "")
    sign = "⚠️" if finding.verdict in (Verdict.WARN, Verdict.NOISE, Verdict.VACUOUS) else ""
    came_to = outcome(report, finding)
    sign = SIGNS[came_to] if came_to != "held" or not sign else sign
    return f"| {sign} | `{finding.probe}` | {finding.verdict.value} | {escape(what)} | {seconds(finding.seconds)} |"


def _details(finding: Finding) -> Iterator[str]:
    yield ""
    yield f"<details><summary><code>{finding.probe}</code>: {finding.verdict.value}</summary>"
    yield ""
    yield from _explained(finding)
    broken = [
        case for case in finding.cases if verdict_of(case) not in (Verdict.PASS, Verdict.SKIP)
    ]
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
    diagnosis, location = finding.diagnosis, finding.location
    if diagnosis is not None:
        residual = f" to {number(diagnosis.residual)}" if diagnosis.residual is not None else ""
        yield f"**{diagnosis.how}: `{diagnosis.fault}`**{residual}. {escape(diagnosis.advice)}"
        yield ""
    if location is not None:
        query = (
            f", query position {location.query_position}"
            if location.query_position is not None
            else ""
        )
        yield f"First diverges in `{location.module}`{query}."
        yield ""
    for line in handed_over(finding):
        yield escape(line)
        yield ""


def _case(case: Measurement) -> str:
    shown = cells(case)
    texts = (shown.measured, shown.allowed, shown.flips, shown.first)
    return f"| {' | '.join((escape(case.name), verdict_of(case).value, *texts))} |"


def escape(text: str) -> str:
    """Text that stays text inside a Markdown table."""
    kept = " ".join(text.split())
    for sign in ("\\", "|", "<", "*", "_", "`", "["):
        kept = kept.replace(sign, f"\\{sign}" if sign != "<" else "&lt;")
    return kept
