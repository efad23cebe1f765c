"""Every renderer survives every report; files are replaced as a whole."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest
from report.reports import everything, passing, report, target

from attncheck.core.finding import Finding
from attncheck.core.verdict import Verdict
from attncheck.report.model import Report, TargetReport
from attncheck.report.record import from_json, to_json
from attncheck.report.write import FORMATS, Writer, is_stream, write_report, write_text


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


def test_a_link_is_followed_and_the_mode_is_kept(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("before")
    (tmp_path / "real").chmod(0o640)
    (tmp_path / "link").symlink_to("middle")
    (tmp_path / "middle").symlink_to(tmp_path / "real")
    write_text(tmp_path / "link", "after")
    assert (tmp_path / "real").read_text() == "after\n"
    assert (tmp_path / "real").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "middle").is_symlink()
    assert len(list(tmp_path.iterdir())) == 3


def test_a_link_to_nothing_makes_the_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("new")
    write_text(tmp_path / "link", "text")
    assert (tmp_path / "new").read_text() == "text\n"


def test_a_file_that_cannot_be_replaced_is_written_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As a file that is mounted into a container.
    def busy(*names: object) -> None:
        raise OSError(errno.EBUSY, "busy")

    (tmp_path / "mounted").write_text("a longer text than comes now")
    monkeypatch.setattr("os.replace", busy)
    write_text(tmp_path / "mounted", "new")
    assert (tmp_path / "mounted").read_text() == "new\n"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_full_disk_leaves_the_last_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "report").write_text("before")
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        write_text(tmp_path / "report", "new")
    assert (tmp_path / "report").read_text() == "before"


def test_a_pipe_gets_one_report_at_the_end(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    writer = Writer([("junit", tmp_path / "pipe")])
    writer.write(report(), must=True)
    writer.finish(everything())
    assert os.read(reader, 1 << 20).decode() == FORMATS["junit"](everything()) + "\n"
    os.close(reader)
    assert is_stream(tmp_path / "pipe")


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "/dev/null"])
def test_descriptors_and_devices_are_streams(name: str) -> None:
    assert is_stream(Path(name))


def test_a_report_that_cannot_be_written_is_one_line_and_the_others_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(report: Report) -> str:
        raise KeyError("lost")

    os.mkfifo(tmp_path / "unread")
    monkeypatch.setitem(FORMATS, "sarif", broken)
    places = [("json", "/dev/full"), ("sarif", "s"), ("junit", "unread"), ("markdown", "m")]
    writer = Writer([(kind, tmp_path / name) for kind, name in places])
    for _ in range(3):
        writer.write(report(), must=True)
    writer.finish(everything())
    assert capsys.readouterr().err.splitlines() == [
        f"attncheck: sarif report {tmp_path}/s: not written: KeyError: no such key: 'lost'",
        "attncheck: json report /dev/full: not written: No space left on device",
        f"attncheck: junit report {tmp_path}/unread: not written: No such device or address",
    ]
    assert (tmp_path / "m").read_text().startswith("## attncheck: failed")


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_says_that_a_run_is_not_whole(kind: str) -> None:
    stopped = report(target("a", passing()), incomplete="8 of 16 probes", exit_code=143)
    text = FORMATS[kind](stopped)
    assert "incomplete" in text
    assert "8 of 16 probes" in text
    assert "incomplete" not in FORMATS[kind](report(target("a", passing())))
