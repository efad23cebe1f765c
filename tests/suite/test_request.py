"""What a command line asks to run: targets or a suite, with its settings and probes overridden."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attncheck.core import registry
from attncheck.core.errors import UsageError
from attncheck.core.extent import RunExtent
from attncheck.core.settings import Settings
from attncheck.suite.plan import Selection
from attncheck.suite.request import RunRequest

SUITE = """\
models: [builtin:gqa, {target: builtin:mha, tags: [slow]}]
settings: {attn: [eager, sdpa], dtype: float64}
probes: [kv-repeat, decode-paths]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def request(**given: Any) -> RunRequest:
    return RunRequest(**{"settings": Settings(), **given})


def test_each_target_runs_under_each_implementation(folder: Path) -> None:
    asked = request(
        targets=("builtin:gqa", "builtin:mha"),
        attn=("eager", "sdpa"),
        selection=Selection(probes=("kv-*",), skip=("kv-groups",)),
    )
    jobs = asked.plan().jobs
    pairs = [(job.target, job.settings.attn) for job in jobs]
    assert pairs == [(t, a) for t in ("builtin:gqa", "builtin:mha") for a in ("eager", "sdpa")]
    assert {tuple(name for name, _ in job.probes) for job in jobs} == {("kv-repeat",)}


def test_quick_and_a_time_are_an_extent_of_every_job(folder: Path) -> None:
    (folder / "attncheck.yaml").write_text("models: [builtin:gqa]\n")
    every = tuple(registry.select())
    for given in ({"targets": ("builtin:gqa",)}, {}):
        (job,) = request(quick=True, budget="2m", **given).plan().jobs
        assert tuple(name for name, _ in job.probes) == every
        assert job.extent == RunExtent(quick=True, seconds=120.0)
    assert request().plan().jobs[0].extent.whole


def test_a_suite_has_an_extent_that_options_override(folder: Path) -> None:
    text = "models: [builtin:gqa]\nquick: true\nbudget: 30s\n"
    (folder / "attncheck.yaml").write_text(text)
    assert request().plan().jobs[0].extent == RunExtent(quick=True, seconds=30.0)
    assert request(budget="5s").plan().jobs[0].extent == RunExtent(quick=True, seconds=5.0)


def test_a_time_that_is_none_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="--budget soon: expected a time such as 30s or 2m"):
        request(targets=("builtin:gqa",), budget="soon").plan()


def test_options_override_the_settings_of_a_suite(folder: Path) -> None:
    (folder / "suite.yaml").write_text(SUITE)
    asked = request(
        suite=folder / "suite.yaml",
        settings=Settings(dtype="float32"),
        attn=("sdpa",),
        selection=Selection(tags=("!slow",)),
    )
    (job,) = asked.plan().jobs
    assert (job.target, job.settings.attn, job.settings.dtype) == ("builtin:gqa", "sdpa", "float32")


def test_the_suite_above_runs_and_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "attncheck.yaml").write_text(SUITE)
    (folder / "below").mkdir()
    monkeypatch.chdir(folder / "below")
    assert len(request().plan().jobs) == 4
    assert f"running the suite {folder / 'attncheck.yaml'}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"targets": ("builtin:gqa",), "suite": Path("x.yaml")},
            "give targets or --suite, not both",
        ),
        ({"selection": Selection(tags=("slow",))}, "--tag selects from a suite, and there is none"),
        (
            {"targets": ("builtin:gqa",), "selection": Selection(probes=("kv-repat",))},
            "unknown probe `kv-repat`: did you mean `kv-repeat`?",
        ),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(
    folder: Path, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message.replace("?", r"\?")):
        request(**given).plan()


def test_a_list_of_targets_has_settings_of_its_own(folder: Path) -> None:
    (folder / "attncheck.yaml").write_text(SUITE)  # not run: targets are given
    (folder / "models.txt").write_text("builtin:mha\nconfig:llama attn=eager layers=2 dtype=auto\n")
    asked = request(
        targets=("builtin:gqa",),
        listed=folder / "models.txt",
        attn=("sdpa", "flex_attention"),
        settings=Settings(dtype="float32", layers=4),
    )
    jobs = asked.plan().jobs
    told = [(each.target, each.settings.attn, each.settings.layers) for each in jobs]
    assert told == [
        ("builtin:gqa", "sdpa", 4),
        ("builtin:gqa", "flex_attention", 4),
        ("builtin:mha", "sdpa", 4),
        ("builtin:mha", "flex_attention", 4),
        ("config:llama", "eager", 2),
    ]
    assert [each.settings.dtype for each in jobs] == ["float32"] * 4 + ["auto"]
    with pytest.raises(UsageError, match="give targets or --suite, not both"):
        request(listed=folder / "models.txt", suite=folder / "attncheck.yaml").plan()
