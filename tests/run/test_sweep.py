"""A sweep: globs, one process a target, limits, resuming."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attncheck.core.errors import TargetError, UsageError
from attncheck.core.settings import Settings
from attncheck.core.verdict import Verdict
from attncheck.report.model import Report, TargetReport
from attncheck.report.record import to_json
from attncheck.run import pool, sweep
from attncheck.run.sweep import Sweep
from attncheck.run.task import Limits, Task
from attncheck.suite.plan import Job

PROBES = (("future-token", dict[str, Any]()),)


def run(*targets: str, folder: Path, seconds: float = 180.0) -> list[TargetReport]:
    jobs = [Job(target=each, settings=Settings(), probes=PROBES) for each in targets]
    whole = Sweep(jobs=jobs, workers=2, limits=Limits(seconds=seconds), folder=folder)
    return [report for _, report in sorted(whole.run(), key=lambda pair: pair[0])]


def test_globs_expand_without_repeats() -> None:
    names = sweep.expand(["builtin:gqa", "config:gpt2", "config:gpt2*"])
    assert names[:2] == ["builtin:gqa", "config:gpt2"]
    assert names.count("config:gpt2") == 1
    with pytest.raises(TargetError):
        sweep.expand(["config:nosuch*"])


def test_targets_run_apart_and_a_second_sweep_takes_their_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = ("builtin:gqa", "config:nosuch")
    found = {report.target: report for report in run(*targets, folder=tmp_path)}
    assert found["builtin:gqa"].verdict is Verdict.PASS
    assert "unknown config type `nosuch`" in str(found["config:nosuch"].error)

    def started(*_: Any) -> None:
        raise AssertionError("a known report was measured again")

    monkeypatch.setattr(pool.Pool, "_start", started)
    again = run(*targets, folder=tmp_path)
    assert [report.verdict for report in again] == [Verdict.PASS, Verdict.ERROR]


def test_a_target_that_takes_too_long_ends_alone(tmp_path: Path) -> None:
    hang = tmp_path / "hang.py"
    hang.write_text("import time\n\ndef model():\n    time.sleep(600)\n")
    crash = tmp_path / "crash.py"
    crash.write_text(
        "import os, signal\n\ndef model():\n    os.kill(os.getpid(), signal.SIGSEGV)\n"
    )
    targets = [f"{hang}:model", f"{crash}:model"]
    reports = run(*targets, folder=tmp_path / "reports", seconds=8)
    said = {report.target: str(report.error) for report in reports}
    assert said[targets[0]] == (f"{targets[0]}: not finished after 8 seconds, in model (hang.py:4)")
    assert said[targets[1]] == f"{targets[1]}: its process ended with signal SIGSEGV"
    # Neither is taken for a result by a run that may have more time.
    assert [path.suffix for path in (tmp_path / "reports").glob("*.json")] == []


def test_what_was_found_before_a_crash_is_kept(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(ENDING)
    probes = (("kv-repeat", dict[str, Any]()), (f"{tmp_path}/mine.py:Mine", {}))
    job = Job(target="builtin:gqa", settings=Settings(), probes=probes)
    alone = Sweep(jobs=[job], workers=1, limits=Limits(), folder=tmp_path / "kept")
    ((place, report),) = alone.run()
    assert (place, report.verdict) == (0, Verdict.ERROR)
    assert [finding.probe for finding in report.results] == ["kv-repeat"]
    assert report.error == "builtin:gqa: its process ended with exit code 0"


ENDING = """
import os
from dataclasses import replace
from dataclasses import dataclass
from attncheck.probing import Probe

@dataclass(frozen=True, kw_only=True)
class Mine(Probe):
    name = "mine"
    title = "ends its process"

    def measure(self, subject):
        os._exit(0)
        yield
"""


def test_a_report_that_nobody_took_yet_counts_when_a_run_is_stopped(tmp_path: Path) -> None:
    job = Job(target="config:nosuch", settings=Settings(), probes=PROBES)
    sweep = Sweep(jobs=[job], workers=1, limits=Limits(), folder=tmp_path)
    whole = Report(attncheck="1", command="", started="2026-11-30T00:00:00Z")
    half = TargetReport(target="config:nosuch", results=())
    path = Task(0, job, tmp_path).path
    path.write_text(to_json(replace(whole, targets=(half,))), encoding="utf-8")
    assert [(place, found.error) for place, found in sweep.begun()] == [(0, None)]
    begun = replace(whole, targets=(half,), incomplete="1 of 2 probes")
    path.write_text(to_json(begun), encoding="utf-8")
    ((_, found),) = sweep.begun()
    assert found.error == "config:nosuch: stopped after 1 of 2 probes"


def test_two_runs_in_one_folder_say_that_they_do_not_share_it(tmp_path: Path) -> None:
    jobs = [Job(target="config:nosuch", settings=Settings(), probes=PROBES)] * 2
    first = Sweep(jobs=jobs, workers=1, limits=Limits(), folder=tmp_path).run()
    next(first)
    with pytest.raises(UsageError) as refused:
        run("builtin:gqa", folder=tmp_path)
    first.close()
    assert str(refused.value) == (
        f"--sweep-dir {tmp_path}: process {os.getpid()} is running a sweep there: "
        "wait for it, or give another folder"
    )
    assert run("config:nosuch", folder=tmp_path)[0].verdict is Verdict.ERROR
