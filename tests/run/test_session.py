"""A run goes on whatever a model raises, and its report is honest at every moment."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from attncheck.core.finding import Finding
from attncheck.core.settings import Settings
from attncheck.core.verdict import Verdict
from attncheck.model.subject import Subject
from attncheck.report.model import Report, TargetReport
from attncheck.run.events import TargetFinished
from attncheck.run.runner import ProbeFinished
from attncheck.run.session import Session, SessionEvent
from attncheck.suite.plan import Job

MODELS = """
import os, sys
from attncheck.targets.builtin import build

class Odd(BaseException):
    pass

class Forward:
    def __init__(self, error):
        self.error = error

    def __call__(self):
        model, error = build("gqa", None), self.error

        class Raising(type(model)):
            def forward(self, input_ids=None, attention_mask=None, past_key_values=None, **kwargs):
                raise error

        model.__class__ = Raising
        return model

def exits():
    sys.exit(0)

def odd():
    raise Odd("of its own")

forward_exits = Forward(SystemExit(0))
forward_odd = Forward(Odd("of its own"))

def moves():
    os.chdir("/")
    return build("gqa", None)
"""
IMPORT = "import sys\nsys.exit(0)\n"
PROBES = (("kv-repeat", {}), ("labels", {}))


def jobs(*targets: str) -> list[Job]:
    return [Job(target=each, settings=Settings(), probes=PROBES) for each in targets]


def session(**rest: object) -> Session:
    return Session(command="", listener=lambda event, report: None, **rest)  # type: ignore[arg-type]


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "models.py").write_text(MODELS)
    (tmp_path / "exits.py").write_text(IMPORT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("target", "error"),
    [
        ("models.py:exits", "models.py:exits: the factory raised SystemExit: 0"),
        ("models.py:odd", "models.py:odd: the factory raised Odd: of its own"),
        ("exits.py:make", "exits.py raises while it is imported: SystemExit: 0"),
    ],
)
@pytest.mark.usefixtures("models")
def test_what_ends_a_process_while_loading_is_an_error_of_one_target(
    target: str, error: str
) -> None:
    report = session().run(jobs(target, "builtin:gqa"))
    assert [each.error for each in report.targets] == [error, None]
    assert [found.verdict for found in report.targets[1].results] == [Verdict.PASS] * 2
    assert (report.exit_code, report.incomplete) == (2, "")


@pytest.mark.parametrize(
    ("target", "summary"),
    [
        ("models.py:forward_exits", "the probe raised SystemExit: 0"),
        ("models.py:forward_odd", "the probe raised Odd: of its own"),
    ],
)
@pytest.mark.usefixtures("models")
def test_what_ends_a_process_in_a_forward_is_a_finding(target: str, summary: str) -> None:
    report = session().run(jobs(target, "builtin:gqa"))
    first, second = report.targets
    assert first.verdict is Verdict.ERROR
    assert summary in {found.summary for found in first.results}
    assert {found.verdict for found in first.results} <= {Verdict.ERROR, Verdict.SKIP}
    assert second.verdict is Verdict.PASS
    assert report.exit_code == 3


def test_a_model_that_changes_the_folder_leaves_the_next_target_where_it_is(models: Path) -> None:
    report = session().run(jobs("models.py:moves", "models.py:moves"))
    assert [each.error for each in report.targets] == [None, None]
    assert Path.cwd() == models


def test_a_report_is_never_green_before_its_end() -> None:
    seen: list[tuple[int, str]] = []

    def listener(event: SessionEvent, report: Report) -> None:
        seen.append((report.exit_code, report.incomplete))

    one = Session(command="", listener=listener)
    assert one.run(jobs("builtin:gqa")).incomplete == ""
    assert {code for code, _ in seen} == {130}
    assert list(dict.fromkeys(words for _, words in seen)) == [
        "0 of 2 probes",
        "1 of 2 probes",
        "2 of 2 probes",
    ]
    assert one.finished(one.report.exit_code).exit_code == 0


def test_a_report_has_its_order_whichever_probe_runs_first() -> None:
    ran: list[str] = []

    def listener(event: SessionEvent, report: Report) -> None:
        if isinstance(event, ProbeFinished):
            ran.append(event.finding.probe)

    probes = (("future-token", {}), ("decode-paths", {}))
    job = Job(target="builtin:gqa", settings=Settings(), probes=probes)
    report = Session(command="", listener=listener).run([job])
    assert ran == ["decode-paths", "future-token"]
    assert [each.probe for each in report.targets[0].results] == ["future-token", "decode-paths"]


def placed(*places: int) -> Iterator[tuple[int, TargetReport]]:
    for place in places:
        verdict = Verdict.FAIL if place == 1 else Verdict.PASS
        finding = Finding(probe="labels", verdict=verdict, summary="")
        yield place, TargetReport(target=f"t{place}", results=(finding,))


def test_reports_that_come_out_of_order_are_listed_as_asked() -> None:
    heard: list[str] = []

    def listener(event: SessionEvent, report: Report) -> None:
        if isinstance(event, TargetFinished):
            heard.append(f"{event.target.target}: {report.incomplete}")

    one = Session(command="", listener=listener)
    report = one.collect(jobs("t0", "t1", "t2"), placed(2, 0, 1), lambda: iter(()))
    assert [each.target for each in report.targets] == ["t0", "t1", "t2"]
    assert heard == ["t2: 1 of 3 targets", "t0: 2 of 3 targets", "t1: 3 of 3 targets"]
    assert (report.exit_code, report.incomplete) == (1, "")


def test_a_sweep_stops_at_the_first_failure() -> None:
    one = session(fail_fast=True)
    report = one.collect(jobs("t0", "t1", "t2"), placed(2, 1, 0), lambda: iter(()))
    assert [each.target for each in report.targets] == ["t1", "t2"]
    assert report.notes == ("stopped at the first failure, after 2 of 3 targets",)
    assert report.exit_code == 1


def test_a_sweep_that_is_stopped_keeps_what_was_begun() -> None:
    def stopped() -> Iterator[tuple[int, TargetReport]]:
        yield from placed(2)
        raise KeyboardInterrupt

    one = session()
    with pytest.raises(KeyboardInterrupt):
        one.collect(jobs("t0", "t1", "t2"), stopped(), lambda: placed(1, 2))
    assert [each.target for each in one.report.targets] == ["t1", "t2"]
    assert (one.report.exit_code, one.report.incomplete) == (130, "1 of 3 targets")


def test_a_search_for_a_fault_that_breaks_leaves_the_finding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*given: object) -> None:
        sys.exit(0)

    monkeypatch.setattr("attncheck.diagnosis.diagnose._searched", broken)
    job = Job(target="builtin:broken-mask", settings=Settings(), probes=(("future-token", {}),))
    (target,) = session().run([job]).targets
    (found,) = target.results
    assert found.verdict is Verdict.FAIL
    assert found.diagnosis is not None
    assert found.diagnosis.advice == "The search for the fault ended early: SystemExit: 0"


def test_what_a_loader_raises_is_an_error_of_the_target() -> None:
    def loader(job: Job) -> Subject:
        raise KeyError("nonsense")

    report = session(loader=loader).run(jobs("builtin:gqa"))
    assert str(report.targets[0].error).startswith("builtin:gqa: KeyError: ")
