"""The report as JUnit XML for GitLab, Jenkins and others: a suite for each target, a case for each
probe.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable

from attncheck.core.finding import Finding
from attncheck.core.visible import made_visible
from attncheck.report.model import Report, TargetReport
from attncheck.report.table import finding_text

# XML 1.0 has no way to write these, escaped or not.
FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
COUNTED = {"failure": "failures", "error": "errors", "skipped": "skipped"}


def junit(report: Report) -> str:
    """The whole report as one `testsuites` element."""
    report = made_visible(report)
    root = ET.Element("testsuites", name="attncheck", time=f"{report.seconds:.3f}")
    root.extend([_suite(report, target) for target in report.targets])
    if report.incomplete:
        suite = ET.SubElement(root, "testsuite", name="attncheck")
        case = ET.SubElement(suite, "testcase", classname="attncheck", name="incomplete")
        _detail(case, "error", "error", f"incomplete: {report.incomplete}")
        _count(suite, suite.iter("testcase"))
    _count(root, root.iter("testcase"))
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode")


def _suite(report: Report, target: TargetReport) -> ET.Element:
    name, started = _clean(target.label), report.started.removesuffix("Z")
    suite = ET.Element("testsuite", name=name, time=f"{target.seconds:.3f}", timestamp=started)
    properties = ET.SubElement(suite, "properties")
    for key, value in {**report.environment, **target.model, **target.settings}.items():
        if value is not None and not isinstance(value, (dict, list)):
            ET.SubElement(properties, "property", name=_clean(key), value=_clean(str(value)))
    if target.error is not None:
        case = ET.SubElement(suite, "testcase", classname=name, name="load")
        _detail(case, "error", "error", target.error)
    suite.extend([_case(report, name, finding) for finding in target.results])
    if target.notes:
        ET.SubElement(suite, "system-out").text = _clean("\n".join(target.notes))
    _count(suite, suite.iter("testcase"))
    return suite


def _case(report: Report, classname: str, finding: Finding) -> ET.Element:
    name, time = _clean(finding.probe), f"{finding.seconds:.3f}"
    case = ET.Element("testcase", classname=classname, name=name, time=time)
    outcome, verdict = report.outcome(finding), finding.verdict.value
    if outcome == "failed":
        _detail(case, "failure", verdict, finding.summary, finding_text(finding))
    elif outcome == "crashed":
        _detail(case, "error", verdict, finding.summary, finding.error or "")
    elif outcome == "skipped":
        _detail(case, "skipped", verdict, finding.skip_reason or finding.summary)
    elif outcome == "known":
        _detail(case, "skipped", verdict, f"{verdict}, {finding.known}", finding_text(finding))
    elif verdict != "pass":
        ET.SubElement(case, "system-out").text = _clean(finding_text(finding))
    return case


def _detail(case: ET.Element, kind: str, verdict: str, message: str, text: str = "") -> None:
    element = ET.SubElement(case, kind, message=_clean(message))
    if kind != "skipped":
        element.set("type", verdict)
    element.text = _clean(text) or None


def _count(element: ET.Element, cases: Iterable[ET.Element]) -> None:
    found = list(cases)
    element.set("tests", str(len(found)))
    for kind, attribute in COUNTED.items():
        element.set(attribute, str(sum(case.find(kind) is not None for case in found)))


def _clean(text: str) -> str:
    return FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)
