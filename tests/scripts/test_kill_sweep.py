"""A sweep that is killed resumes to the report of one that is not: `scripts/kill_sweep.py` kills
twenty, as users start them; here a few are forked from this process, which has loaded torch.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from attncheck.__main__ import main
from attncheck.core.settings import Settings
from attncheck.run import pool
from attncheck.targets.load import load
from scripts.kill_sweep import NOT_FINISHED, SweepCommand, comparable, complaints, kill

TARGETS = ("builtin:gqa", "config:nosuch", "builtin:alibi")
PROBES = ("kv-repeat", "labels")


class Forked:
    """A command in a process group of its own, as far as `kill` uses a Popen."""

    def __init__(self, home: Path, arguments: list[str]) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            code = 70
            try:
                os.setsid()
                os.chdir(home)
                sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
                pool._context = lambda: multiprocessing.get_context("fork")
                code = main(arguments)
            finally:
                os._exit(code)

    def poll(self) -> int | None:
        return self._wait(os.WNOHANG)

    def communicate(self) -> tuple[str, str]:
        self._wait(0)
        return "", ""

    def _wait(self, how: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, how)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


Start = Callable[[str], SweepCommand]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    load("builtin:gqa", Settings())  # what the child inherits
    monkeypatch.setattr(SweepCommand, "start", lambda self: Forked(self.home, self.arguments()))

    def made(name: str) -> SweepCommand:
        (tmp_path / name).mkdir()
        return SweepCommand(tmp_path / name, TARGETS, PROBES)

    return made


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_killed_sweeps_resume_to_the_same_report(start: Start) -> None:
    whole = start("whole").whole()
    assert [each["target"] for each in whole["targets"]] == list(TARGETS)
    for at_least in (1, 2, 3):
        command = start(str(at_least))
        found, ended = kill(command, at_least, 0.0, signal.SIGKILL)
        assert found >= at_least
        assert ended == -signal.SIGKILL
        assert list(complaints(command, whole)) == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_sweep_that_is_terminated_reports_what_is_finished(start: Start) -> None:
    command = start("terminated")
    found, ended = kill(command, 1, 0.0, signal.SIGTERM)
    assert ended == 143
    left = json.loads(command.report.read_text())
    assert left["exit_code"] == 143
    assert left["incomplete"].endswith(" of 3 targets")
    kept = sum(len(each["results"]) or each["error"] is not None for each in left["targets"])
    assert kept >= found
    begun = [each for each in left["targets"] if each["error"] and each["results"]]
    for each in begun:
        done = len(each["results"])
        assert each["error"] == f"{each['target']}: stopped after {done} of 2 probes"
    order = [TARGETS.index(each["target"]) for each in left["targets"]]
    assert order == sorted(order)


def test_a_report_that_looks_finished_and_a_lost_result_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = SweepCommand(tmp_path, TARGETS, PROBES)
    monkeypatch.setattr(SweepCommand, "whole", lambda self: {"targets": []})
    command.report.write_text(json.dumps({"exit_code": 0, "targets": []}))
    assert list(complaints(command, {"targets": [1]})) == [
        "a report of 0 targets with exit code 0",
        "the resumed report differs",
    ]
    assert set(NOT_FINISHED) == {129, 130, 143}


def test_durations_are_not_compared() -> None:
    data = {"seconds": 1, "targets": [{"load_seconds": 2, "target": "a"}]}
    assert comparable(data) == {"targets": [{"target": "a"}]}
