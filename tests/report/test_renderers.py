"""Every renderer: reads nothing but the report, survives every kind of content, says what counts."""

import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from report.reports import (
    NASTY,
    crashed,
    everything,
    failing,
    memory,
    passing,
    report,
    skipping,
    target,
    vacuous,
)

from attncheck.core.finding import KnownFinding, Verdict
from attncheck.report import charts
from attncheck.report.github import tell_github, workflow_commands
from attncheck.report.html import html
from attncheck.report.junit import junit
from attncheck.report.markdown import markdown
from attncheck.report.model import Report
from attncheck.report.record import from_json, to_json
from attncheck.report.sarif import sarif
from attncheck.report.schema import first_complaint
from attncheck.report.write import FORMATS, Writer, write_report

SARIF = json.loads((Path(__file__).parent / "sarif_schema.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", FORMATS)
def test_a_saved_report_renders_as_the_live_one(kind: str) -> None:
    live = everything()
    assert FORMATS[kind](from_json(to_json(live))) == FORMATS[kind](live)


@pytest.mark.parametrize("kind", FORMATS)
def test_an_empty_report_renders(kind: str) -> None:
    assert FORMATS[kind](report())


def test_json_fits_its_schema_and_keeps_lists_of_numbers_on_one_line() -> None:
    text = to_json(everything())
    assert first_complaint(json.loads(text)) == ""
    assert '"cuts": [12]' in text
    assert json.loads(text)["targets"][0]["results"][0]["controls"][0]["max_abs"] == 2.4


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        (("exit_code",), 4, "report.exit_code: 4 is not one of"),
        (
            ("targets", 0, "results", 0, "verdict"),
            "passed",
            "report.targets[0].results[0].verdict: 'passed' is not one of",
        ),
        (
            ("targets", 0, "results", 0, "cases", 0, "max_abs"),
            "many",
            "report.targets[0].results[0].cases[0].max_abs",
        ),
        (("summary", "fail"), -1, "report.summary.fail: -1 is less than the minimum"),
    ],
)
def test_the_schema_refuses(path: tuple[Any, ...], value: Any, complaint: str) -> None:
    data = json.loads(to_json(everything()))
    place = data
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    assert first_complaint(data).startswith(complaint)


def test_junit_counts_what_it_holds() -> None:
    root = ET.fromstring(junit(everything()))
    first, second, third = root.findall("testsuite")
    assert root.attrib | {"name": "attncheck"} == root.attrib
    assert (root.get("tests"), root.get("failures"), root.get("errors"), root.get("skipped")) == (
        "10",
        "3",
        "2",
        "3",
    )
    assert (
        first.get("tests"),
        first.get("failures"),
        first.get("errors"),
        first.get("skipped"),
    ) == ("8", "3", "1", "2")
    assert second.get("name") == "org/name (sdpa, float64, cpu)"
    assert third.find("testcase/error") is not None
    failures = {case.get("name"): case.find("failure") for case in first.iter("testcase")}
    decode = failures["decode-paths"]
    assert decode is not None
    assert "chunks 12+12, 2D mask" in (decode.text or "")
    assert failures["batch-rows"] is not None, "vacuous counts under fail_on"
    assert failures["kv-repeat"] is None, "a warning does not count"
    assert {
        case.get("time") for case in first.iter("testcase") if case.get("name") == "decode-paths"
    } == {"1.250"}


def test_junit_holds_no_character_that_xml_forbids() -> None:
    text = junit(everything())
    assert "\x07" not in text
    assert "\ufffd bell" in text


def test_sarif_fits_the_standard() -> None:
    log = json.loads(sarif(everything()))
    jsonschema.Draft202012Validator(SARIF).validate(log)
    (run,) = log["runs"]
    levels = {(r["ruleId"], r["properties"]["target"]): r["level"] for r in run["results"]}
    assert levels[("decode-paths", "builtin:gqa")] == "error"
    assert levels[("kv-repeat", "builtin:gqa")] == "warning"
    assert levels[("position-reset", "builtin:gqa")] == "warning"
    assert ("future-token", "builtin:gqa") not in levels
    suppressed = [r for r in run["results"] if "suppressions" in r]
    assert [r["suppressions"][0]["justification"] for r in suppressed] == [
        "expected: soon, until 2027-01-01 https://x.y/1",
        "in the baseline",
    ]
    assert all(
        run["tool"]["driver"]["rules"][r["ruleIndex"]]["id"] == r["ruleId"] for r in run["results"]
    )
    assert run["invocations"][0]["executionSuccessful"] is False


def test_sarif_fingerprints_tell_findings_apart() -> None:
    log = json.loads(sarif(everything()))
    prints = [r["partialFingerprints"]["attncheck/v1"] for r in log["runs"][0]["results"]]
    assert len(set(prints)) == len(prints)


def test_markdown_is_one_table_row_a_probe() -> None:
    text = markdown(everything())
    rows = [line for line in text.splitlines() if line.startswith("| ") and "`" in line]
    assert len(rows) == 9
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 6 for row in rows)
    assert "<tag>" not in text.split("```")[0]
    assert "**reproduced: `position-restart`** to 3.0e-13" in text


def test_github_annotations_are_one_line_each() -> None:
    lines = list(workflow_commands(everything()))
    assert all("\n" not in line and line.startswith("::") for line in lines)
    assert sum(line.startswith("::error") for line in lines) == 5
    assert any("%25" in line and "%0A" in line for line in lines)


def test_github_is_told_only_there(tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    assert tell_github(everything(), {}) == []
    told = tell_github(
        everything(), {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)}
    )
    assert len(told) == 9
    assert summary.read_text(encoding="utf-8").startswith("before\n## attncheck: failed")


class Page(HTMLParser):
    """Counts tags, and keeps whatever a page would fetch."""

    VOID = frozenset({"meta", "br", "link", "img", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag not in self.VOID:
            self.open.append(tag)
        if given.get("src"):
            self.fetched.append(str(given["src"]))
        if tag in ("link", "script"):
            self.fetched.append(tag)
        if "id" in given:
            self.ids.append(str(given["id"]))
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        return

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_html_is_one_file_with_working_links() -> None:
    page = Page()
    text = html(everything())
    page.feed(text)
    assert page.open == []
    assert page.fetched == []
    assert len(set(page.ids)) == len(page.ids)
    assert {link[1:] for link in page.links} <= set(page.ids)
    assert "<tag>" not in text
    assert "@import" not in text
    assert "url(" not in text


def test_html_unfolds_what_is_red_and_folds_what_is_known() -> None:
    text = html(everything())
    assert '<details id="m1-decode-paths" class="fail" open>' in text
    assert '<details id="m1-position-reset" class="fail">' in text
    assert '<details id="m1-future-token" class="pass">' in text


def test_strips_are_drawn_of_what_did_not_hold() -> None:
    drawn = charts.strips(failing())
    assert drawn is not None
    (row,) = drawn.rows
    assert row.cuts == (12,)
    assert drawn.end == 24
    assert [cell.heat for cell in row.cells[:13]] == [0.0] * 12 + [1.0]
    assert 0.9 < row.cells[13].heat < 1.0
    assert charts.strips(passing()) is None


def test_the_curve_is_logarithmic_and_marks_chunks() -> None:
    drawn = charts.curve(failing())
    assert drawn is not None
    points = [tuple(map(float, point.split(","))) for point in drawn.points.split()]
    assert len(points) == 24
    assert points[0][1] > drawn.budget_y > points[12][1]
    assert drawn.cuts == (points[12][0],)


def test_bars_share_a_scale_within_a_unit() -> None:
    (sizes,) = charts.bars(memory())
    assert [(bar.name, bar.share, bar.pale) for bar in sizes.rows] == [
        ("cache bytes", 0.5, False),
        ("MHA", 1.0, True),
        ("MQA", 0.25, True),
    ]


def test_layers_rise_on_a_logarithmic_scale() -> None:
    drawn = charts.layers(failing())
    assert drawn is not None
    assert drawn.rows[1].share == 1.0
    assert 0.5 < drawn.rows[0].share < 1.0


@pytest.mark.parametrize(
    ("made", "code", "says"),
    [
        (report(target("a", passing())), 0, ""),
        (report(target("a", failing())), 1, "chunks 12+12"),
        (report(target("a", failing(known=KnownFinding(by="baseline")), passing())), 0, ""),
        (report(target("a", crashed())), 3, "ValueError"),
        (report(target("a", skipping())), 5, "nothing ran\n\ngradient: the weights are quantised"),
        (report(target("a", error=NASTY)), 2, 'a: a "quoted"'),
        (report(target("a", vacuous()), fail_on=("vacuous",), exit_code=1), 1, "batch-rows"),
    ],
)
def test_raise_for_failures(made: Report, code: int, says: str) -> None:
    assert made.exit_code == code
    if not code:
        made.raise_for_failures()
        return
    with pytest.raises(AssertionError) as caught:
        made.raise_for_failures()
    assert says in str(caught.value)


def test_writing_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.json"
    write_report(report(target("a", passing())), "json", path)
    before = path.read_text()
    monkeypatch.setattr("os.replace", lambda *names: (_ for _ in ()).throw(OSError("killed")))
    with pytest.raises(OSError, match="killed"):
        write_report(everything(), "json", path)
    assert path.read_text() == before


def test_every_verdict_is_in_the_report_that_the_tests_use() -> None:
    seen = {finding.verdict for each in everything().targets for finding in each.results}
    assert seen == set(Verdict) - {Verdict.NOISE}


def test_a_report_of_a_later_version_can_be_read() -> None:
    data = json.loads(to_json(everything()))
    data["later"] = 1
    for result in data["targets"][0]["results"]:
        for part in (
            result,
            *result["cases"],
            *result["controls"],
            result["diagnosis"],
            result["location"],
            result["known"],
        ):
            (part or {})["later"] = 1
    assert to_json(from_json(json.dumps(data))) == to_json(everything())


def test_reports_that_take_long_are_written_seldom_but_always_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, written = [0.0], []
    monkeypatch.setattr("attncheck.report.write.time.monotonic", lambda: now[0])

    def write(report: Report, kind: str, path: Path) -> None:
        now[0] += 0.5
        written.append(now[0])

    monkeypatch.setattr("attncheck.report.write.write_report", write)
    writer = Writer([("json", tmp_path / "a")])
    for _ in range(20):
        writer.write(report())
        now[0] += 0.5
    assert written == [0.5, 6.0]
    writer.write(report(), must=True)
    assert len(written) == 3
