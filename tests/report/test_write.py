"""Every renderer survives every report; files are replaced as a whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from report.reports import everything, passing, report, target

from attncheck.core.finding import Finding
from attncheck.core.verdict import Verdict
from attncheck.report.model import Report, TargetReport
from attncheck.report.record import from_json, to_json
from attncheck.report.write import FORMATS, Writer, write_report


@pytest.mark.parametrize("kind", FORMATS)
def test_a_saved_report_renders_as_the_live_one(kind: str) -> None:
    live = everything()
    assert FORMATS[kind](from_json(to_json(live))) == FORMATS[kind](live)


@pytest.mark.parametrize("kind", FORMATS)
def test_an_empty_report_renders(kind: str) -> None:
    assert FORMATS[kind](report())


def test_every_verdict_is_in_the_report_that_the_tests_use() -> None:
    seen = {finding.verdict for each in everything().targets for finding in each.results}
    assert seen == set(Verdict) - {Verdict.NOISE}


def test_writing_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.json"
    write_report(report(target("a", passing())), "json", path)
    before = path.read_text()
    monkeypatch.setattr("os.replace", lambda *names: (_ for _ in ()).throw(OSError("killed")))
    with pytest.raises(OSError, match="killed"):
        write_report(everything(), "json", path)
    assert path.read_text() == before


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


@pytest.mark.parametrize("kind", ["json", "junit", "markdown", "html"])
def test_no_report_holds_a_control_character(kind: str) -> None:
    hostile = "\x1b[31mred\x07 \x9b2J <b>"
    finding = Finding(probe=hostile, verdict=Verdict.FAIL, summary=hostile, error=hostile)
    broken = TargetReport(
        target=hostile, model={"class": hostile}, results=(finding,), notes=(hostile,)
    )
    whole = replace(everything(), targets=(broken,), notes=(hostile,), command=hostile)
    text = FORMATS[kind](whole)
    assert not {"\x1b", "\x07"} & set(text)
    if kind != "json":  # a report is data: JSON writes the same text in its own way
        assert "\x9b" not in text
        assert r"\x1b" in text
