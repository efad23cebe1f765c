"""A sweep: globs, one process a target, limits, resuming."""

from pathlib import Path
from typing import Any

import pytest

from attncheck.core.errors import TargetError
from attncheck.core.settings import Settings
from attncheck.core.verdict import Verdict
from attncheck.report.model import TargetReport
from attncheck.run import sweep
from attncheck.suite.plan import Job

PROBES = (("future-token", dict[str, Any]()),)


def run(*targets: str, folder: Path, seconds: float = 180.0) -> list[TargetReport]:
    jobs = [Job(target=each, settings=Settings(), probes=PROBES) for each in targets]
    limits = sweep.Limits(seconds=seconds)
    return list(sweep.run_jobs(jobs, workers=2, limits=limits, folder=folder))


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

    monkeypatch.setattr(sweep._Pool, "_start", started)
    again = run(*targets, folder=tmp_path)
    assert [report.verdict for report in again] == [Verdict.PASS, Verdict.ERROR]


def test_settings_and_probes_make_another_report() -> None:
    job = Job(target="builtin:gqa", settings=Settings(), probes=PROBES)
    assert sweep.key_of(job) != sweep.key_of(
        Job(target="builtin:gqa", settings=Settings(seed=1), probes=job.probes)
    )
    assert sweep.key_of(job) != sweep.key_of(
        Job(target="builtin:gqa", settings=Settings(), probes=(("kv-repeat", {}),))
    )


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
    assert "not finished after 8 seconds" in said[targets[0]]
    assert "signal SIGSEGV" in said[targets[1]]
