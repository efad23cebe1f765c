"""The report as one HTML file that needs nothing else: verdicts, tables, and pictures where people
would rather look.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from attncheck.core.finding import Finding
from attncheck.core.measurement import verdict_of
from attncheck.core.verdict import Verdict
from attncheck.core.visible import made_visible
from attncheck.report import charts
from attncheck.report.failures import failure_causes
from attncheck.report.model import Report
from attncheck.report.numbers import cells, count, number, seconds
from attncheck.report.table import location_text

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

BACKTICKS = re.compile("`([^`]+)`")
TEMPLATES = Path(__file__).parent / "templates"


def html(report: Report) -> str:
    """The whole report as one page."""
    template, report = _environment().get_template("report.html"), made_visible(report)
    probes = list(
        dict.fromkeys(finding.probe for target in report.targets for finding in target.results)
    )
    return template.render(
        report=report,
        probes=probes,
        opened_targets=[target for target in report.targets if failure_causes(target)],
        style=(TEMPLATES / "report.css").read_text(encoding="utf-8"),
        versions={name: value for name, value in report.environment.items() if value},
    )


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(number=number, seconds=seconds, amount=count, code=code)
    made.globals.update(
        strips=charts.strips,
        curve=charts.curve,
        bars=charts.bars,
        layers=charts.layers,
        spans=charts.spans,
        drawing=charts,
        verdict_of=verdict_of,
        cells=cells,
        location_text=location_text,
        is_open=is_open,
        finding_of=finding_of,
        causes=failure_causes,
    )
    return made


def code(text: str) -> Markup:
    """Text of a report with what stands in backticks set as code."""
    from markupsafe import Markup, escape

    return Markup(BACKTICKS.sub(r"<code>\1</code>", str(escape(text))))


def finding_of(results: tuple[Finding, ...], probe: str) -> Finding | None:
    """The finding of one probe, where it ran."""
    return next((finding for finding in results if finding.probe == probe), None)


def is_open(finding: Finding) -> bool:
    """Whether a finding is unfolded from the start: what is red or yellow and not known."""
    return finding.verdict not in (Verdict.PASS, Verdict.SKIP) and finding.known is None
