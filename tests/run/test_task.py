"""A saved report is taken only for what it was made of."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from attncheck.core.settings import Settings
from attncheck.report.model import TargetReport
from attncheck.report.write import write_report
from attncheck.run import identity
from attncheck.run.session import Session
from attncheck.run.task import Task
from attncheck.suite.plan import Job
from attncheck.targets.builtin import build

JOB = Job(target="builtin:gqa", settings=Settings(), probes=(("labels", {}),))


def task(folder: Path, target: str = "builtin:gqa", **changes: Any) -> Task:
    return Task(0, replace(JOB, target=target, **changes), folder)


def test_settings_probes_folder_and_target_make_another_report(tmp_path: Path) -> None:
    keys = [
        task(tmp_path).key,
        task(tmp_path, settings=Settings(seed=1)).key,
        task(tmp_path, probes=(("kv-repeat", {}),)).key,
        task(tmp_path, probes=(("labels", {"x": 1}),)).key,
        task(tmp_path, target="builtin:mha").key,
        Task(0, JOB, tmp_path, repro=tmp_path).key,
    ]
    assert len(set(keys)) == len(keys)
    assert task(tmp_path).key == task(tmp_path).key


@pytest.mark.parametrize(
    ("one", "other"), [("./c/b", "./c_b"), ("a:b", "a_b"), ("x" * 200 + "1", "x" * 200 + "2")]
)
def test_names_never_collide(tmp_path: Path, one: str, other: str) -> None:
    first, second = task(tmp_path, one).path, task(tmp_path, other).path
    assert first != second
    assert len(first.name) < 150
    first.write_text("")


def test_changed_weights_are_another_model(
    tmp_path: Path, saved: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved()
    before = task(tmp_path, str(folder))
    key = before.key
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][3] += 1e-3
    times = (folder / "model.safetensors").stat()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    os.utime(folder / "model.safetensors", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert before.changed()
    assert task(tmp_path, str(folder)).key != key
    # Large files are told by size and times, of which no tool sets the last.
    monkeypatch.setattr(identity, "READ_WHOLE", 0)
    key = task(tmp_path, str(folder)).key
    (folder / "model.safetensors").touch()
    assert task(tmp_path, str(folder)).key != key


def test_a_config_and_a_link_to_another_folder_are_another_model(
    tmp_path: Path, saved: Callable[..., Path]
) -> None:
    one, other = saved("one"), saved("other")
    (tmp_path / "link").symlink_to(one)
    key = task(tmp_path, str(tmp_path / "link")).key
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to(other)
    assert task(tmp_path, str(tmp_path / "link")).key != key
    key = task(tmp_path, str(one)).key
    (one / "generation_config.json").write_text("{}")
    assert task(tmp_path, str(one)).key != key


def test_a_probe_that_is_edited_is_another_probe(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("one")
    probes = (("mine.py:Mine", {}),)
    key = task(tmp_path, probes=probes, home=tmp_path).key
    (tmp_path / "mine.py").write_text("two")
    assert task(tmp_path, probes=probes, home=tmp_path).key != key


def test_only_loading_tells_what_a_factory_returns(tmp_path: Path) -> None:
    (tmp_path / "make.py").write_text("def make(): ...\n")
    assert not task(tmp_path, f"{tmp_path}/make.py:make").known
    assert task(tmp_path).known
    assert task(tmp_path, "config:nosuch").known
    assert task(tmp_path, "no/such/folder").known


def test_a_report_that_is_not_whole_or_lost_its_script_is_not_taken(tmp_path: Path) -> None:
    from report.reports import failing

    one = task(tmp_path)
    script = tmp_path / "script.py"
    script.write_text("")
    finding = failing(replay={"script": str(script)})
    session = Session(command="sweep", listener=lambda event, report: None)
    target = TargetReport(target="builtin:gqa", results=(finding,))
    report = session.collect([one.job], (pair for pair in [(0, target)]), lambda: iter(()))
    write_report(report, "json", one.path)
    assert one.saved() == target
    write_report(replace(report, incomplete="1 of 2 probes"), "json", one.path)
    assert one.saved() is None
    assert one.read() is not None
    write_report(report, "json", one.path)
    script.unlink()
    assert one.saved() is None
    one.path.write_text("{")
    assert one.read() is None


class Counting(torch.nn.Module):
    """A model with a weight and a number of its own."""

    def __init__(self, window: int = 4, weight: float = 1.0) -> None:
        super().__init__()
        self.window = window
        self.weight = torch.nn.Parameter(torch.full((2,), weight, dtype=torch.bfloat16))


def test_a_model_in_memory_is_its_weights_and_numbers() -> None:
    same = identity.of_loaded(Counting())
    assert identity.of_loaded(Counting()) == same
    assert identity.of_loaded(Counting(window=5)) != same
    assert identity.of_loaded(Counting(weight=1.01)) != same
    assert identity.of_loaded(Counting().float()) != same


@pytest.mark.parametrize("name", ["broken-mask", "broken-positions"])
def test_a_fault_in_code_is_another_model(name: str) -> None:
    models = [build("gqa", None), build("gqa", None), build(name, None)]
    first, again, broken = map(identity.of_loaded, models)
    assert first == again != broken
