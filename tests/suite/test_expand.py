"""Suites expand into the jobs that they name, in order, with defaults, overrides, tags, includes
and variables.
"""

from datetime import date
from pathlib import Path

import pytest

from attncheck.core import registry
from attncheck.core.verdict import Verdict
from attncheck.suite.expand import load_plan
from attncheck.suite.load import find_suite
from attncheck.suite.plan import Plan, Selection


def plan_of(folder: Path, text: str, choice: Selection | None = None) -> Plan:
    file = folder / "suite.yaml"
    file.write_text(text)
    return load_plan(file, choice)


def spec(plan: Plan) -> list[tuple[str, str | None, str]]:
    return [(job.target, job.settings.attn, job.settings.dtype) for job in plan.jobs]


def names(plan: Plan) -> list[list[str]]:
    return [[name for name, _ in job.probes] for job in plan.jobs]


def test_without_probes_all_installed_ones_run(tmp_path: Path) -> None:
    assert names(plan_of(tmp_path, "models: [builtin:gqa]")) == [list(registry.installed())]


def test_lists_of_settings_are_axes_and_models_override_them(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path,
        """
        settings: {attn: [eager, default], dtype: [float32, float64], seed: 3}
        models:
          - builtin:gqa
          - {target: builtin:mha, settings: {attn: sdpa}, exclude: [{dtype: float64}]}
        """,
    )
    assert spec(plan) == [
        ("builtin:gqa", "eager", "float32"),
        ("builtin:gqa", "eager", "float64"),
        ("builtin:gqa", None, "float32"),
        ("builtin:gqa", None, "float64"),
        ("builtin:mha", "sdpa", "float32"),
    ]
    assert {job.settings.seed for job in plan.jobs} == {3}


def test_options_are_typed_and_a_model_overrides_them(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path,
        """
        probes:
          - decode-paths: {schedules: [[4, 4], [7, 1]]}
          - document-leakage: {policy: isolate}
        models:
          - builtin:gqa
          - {target: builtin:mha, options: {document-leakage: {policy: allow}}, skip: decode-*}
        """,
    )
    first, second = plan.jobs
    assert first.probes == (
        ("decode-paths", {"schedules": ((4, 4), (7, 1))}),
        ("document-leakage", {"policy": "isolate"}),
    )
    assert second.probes == (("document-leakage", {"policy": "allow"}),)


def test_globs_and_skips(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path, "models: [builtin:gqa]\nprobes: ['*-leakage', kv-repeat]\nskip: kv-*\n"
    )
    assert names(plan) == [["document-leakage"]]


SUITE_WITH_TAGS = """
models:
  - {target: builtin:gqa, tags: [quick, release]}
  - {target: builtin:mha, tags: slow}
  - builtin:moe
probes:
  - future-token
  - {probe: kv-repeat, tags: memory}
"""


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (
            Selection(tags=("quick",)),
            {"builtin:gqa": ["future-token", "kv-repeat"], "builtin:mha": [], "builtin:moe": []},
        ),
        (
            Selection(tags=("memory",)),
            {
                "builtin:gqa": ["kv-repeat"],
                "builtin:mha": ["kv-repeat"],
                "builtin:moe": ["kv-repeat"],
            },
        ),
        (
            Selection(tags=("!slow", "!memory")),
            {"builtin:gqa": ["future-token"], "builtin:moe": ["future-token"]},
        ),
        (
            Selection(probes=("kv-*",), skip=()),
            {
                "builtin:gqa": ["kv-repeat"],
                "builtin:mha": ["kv-repeat"],
                "builtin:moe": ["kv-repeat"],
            },
        ),
        (Selection(skip=("*",)), {}),
    ],
)
def test_choice(tmp_path: Path, choice: Selection, expected: dict[str, list[str]]) -> None:
    plan = plan_of(tmp_path, SUITE_WITH_TAGS, choice)
    assert {job.target: [name for name, _ in job.probes] for job in plan.jobs} == {
        k: v for k, v in expected.items() if v
    }


def test_includes_come_first_and_the_including_file_wins(tmp_path: Path) -> None:
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "base.yaml").write_text(
        "models: [builtin:mha]\nsettings: {attn: eager, seed: 1}\nprobes: [future-token]\nstrict: true\nbaseline: known.json\n"
    )
    plan = plan_of(
        tmp_path, "include: common/base.yaml\nmodels: [builtin:gqa]\nsettings: {attn: sdpa}\n"
    )
    assert [(job.target, job.settings.attn, job.settings.seed) for job in plan.jobs] == [
        ("builtin:mha", "sdpa", 1),
        ("builtin:gqa", "sdpa", 1),
    ]
    assert names(plan) == [["future-token"], ["future-token"]]
    assert plan.strict
    assert plan.baseline is not None
    assert plan.baseline.resolve() == (tmp_path / "common" / "known.json").resolve()


def test_environment_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHICH_MODEL", "builtin:moe")
    monkeypatch.setenv("A_SEED", "7")
    plan = plan_of(
        tmp_path,
        "models: ['${WHICH_MODEL}', 'builtin:${NOT_THERE:-gqa}']\nsettings: {seed: '${A_SEED}'}\n",
    )
    assert [(job.target, job.settings.seed) for job in plan.jobs] == [
        ("builtin:moe", 7),
        ("builtin:gqa", 7),
    ]


def test_targets_probes_and_prompts_are_relative_to_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "deep"
    home.mkdir()
    (home / "mine.py").write_text("def make(): ...\nclass Probe: ...\n")
    (home / "text.txt").write_text("hello")
    monkeypatch.chdir(tmp_path)
    plan = plan_of(
        home,
        "models: ['mine.py:make']\nprobes: ['./mine.py:Probe']\nsettings: {prompt: '@text.txt'}\n",
    )
    (job,) = plan.jobs
    assert job.target == "deep/mine.py:make"
    assert job.settings.prompt == "hello"
    assert (job.home / job.probes[0][0].rpartition(":")[0]).is_file()


def test_expected_failures_reach_the_jobs_that_they_speak_of(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path,
        """
        models: [builtin:gqa, builtin:mha]
        probes: [future-token, kv-repeat]
        settings: {attn: [eager, sdpa]}
        expected_failures:
          - {model: "*:gqa", probe: kv-*, settings: {attn: eager}, verdict: [warn, fail],
             reason: eager copies, expires: 2027-06-30}
        """,
    )
    concerned = [(job.target, job.settings.attn) for job in plan.jobs if job.expected]
    assert concerned == [("builtin:gqa", "eager")]
    (expected,) = plan.jobs[0].expected
    assert expected.expires == date(2027, 6, 30)
    assert expected.verdicts == {Verdict.WARN, Verdict.FAIL}
    assert expected.where.endswith("suite.yaml:6")


def test_anchors_and_merge_keys(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path,
        """
        models:
          - {target: builtin:gqa, settings: &usual {attn: eager, seed: 5}}
          - {target: builtin:mha, settings: {<<: *usual, attn: sdpa}}
        """,
    )
    assert [(job.settings.attn, job.settings.seed) for job in plan.jobs] == [
        ("eager", 5),
        ("sdpa", 5),
    ]


def test_the_suite_is_found_by_walking_up_to_the_root_of_the_repository(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    deep = repository / "a" / "b"
    deep.mkdir(parents=True)
    (repository / ".git").mkdir()
    (tmp_path / "attncheck.yaml").write_text("models: [builtin:gqa]")
    assert find_suite(deep) is None
    (repository / "attncheck.yaml").write_text("models: [builtin:gqa]")
    assert find_suite(deep) == (repository / "attncheck.yaml").resolve()
