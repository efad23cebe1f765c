"""A sweep on Ray gives the reports of one on this machine, also when a worker or a node is lost."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attncheck.core.errors import UsageError
from attncheck.core.settings import Settings
from attncheck.core.verdict import Verdict
from attncheck.report.model import TargetReport
from attncheck.run import on_ray
from attncheck.run.sweep import Executor, Sweep
from attncheck.run.task import Limits
from attncheck.suite.plan import Job

PROBES = (("kv-repeat", dict[str, Any]()), ("future-token", dict[str, Any]()))
ONCE = """
import os, pathlib, time

MARK = pathlib.Path({mark!r})

def make():
    from attncheck.targets.builtin import build
    first = not MARK.exists()
    with MARK.open("a") as out:
        out.write("begun\\n")
    if first:
        {act}
    import torch
    torch.manual_seed(0)
    return build("gqa", None)
"""
KILLS_ITS_WORKER = """import psutil
        here = psutil.Process()
        worker = next(each for each in here.parents() if "ray::" in " ".join(each.cmdline()))
        worker.kill()
        time.sleep(60)"""


def reports(executor: Executor, folder: Path, *targets: str) -> list[TargetReport]:
    jobs = [Job(target=each, settings=Settings(), probes=PROBES) for each in targets]
    whole = Sweep(jobs=jobs, workers=2, limits=Limits(), folder=folder, executor=executor)
    return [report for _, report in sorted(whole.run(), key=lambda pair: pair[0])]


def lasting(report: TargetReport) -> TargetReport:
    """A report without what is different in every run."""
    results = tuple(replace(each, seconds=0.0) for each in report.results)
    return replace(report, results=results, seconds=0.0, load_seconds=0.0)


def once(folder: Path, act: str) -> tuple[str, Path]:
    """A factory that does something the first time, and the file with a line for each time."""
    mark, path = folder / "mark", folder / "once.py"
    path.write_text(ONCE.format(mark=str(mark), act=act))
    return f"{path}:make", mark


def test_without_ray_the_option_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(UsageError, match=r"--executor ray: pip install 'attncheck\[ray\]'"):
        reports("ray", tmp_path, "builtin:gqa")


def test_a_lost_worker_costs_nothing_and_a_second_run_begins_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    target, mark = once(tmp_path, KILLS_ITS_WORKER)
    targets = ("builtin:broken-mask", target, "config:nosuch")
    found = reports("ray", tmp_path / "ray", *targets)
    assert mark.read_text() == "begun\n" * 2
    assert [each.verdict for each in found] == [Verdict.FAIL, Verdict.PASS, Verdict.ERROR]
    here = reports("processes", tmp_path / "here", *targets)
    assert list(map(lasting, found)) == list(map(lasting, here))
    monkeypatch.setattr(on_ray, "_ray", lambda: pytest.fail("a known report was measured again"))
    again = reports("ray", tmp_path / "ray", "builtin:broken-mask", "config:nosuch")
    assert [lasting(each) for each in again] == [lasting(found[0]), lasting(found[2])]


def test_a_lost_node_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    target, mark = once(tmp_path, "time.sleep(600)")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    node = cluster.add_node(num_cpus=1)
    monkeypatch.setenv(on_ray.ADDRESS, cluster.address)

    with ThreadPoolExecutor() as beside:
        found = beside.submit(reports, "ray", tmp_path / "ray", target)
        while not mark.exists() and not found.done():
            time.sleep(0.2)
        cluster.add_node(num_cpus=1)
        cluster.remove_node(node)
        (report,) = found.result()
    cluster.shutdown()
    assert (report.verdict, mark.read_text()) == (Verdict.PASS, "begun\n" * 2)
