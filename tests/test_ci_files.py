"""The action, the hooks and the snippets of docs/ci.md: parsed, and run as far as one machine
allows.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from attncheck.report.write import FORMATS

ROOT = Path(__file__).parents[1]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
STEP = next(step for step in ACTION["runs"]["steps"] if step.get("id") == "run")


def test_no_input_is_pasted_into_a_script() -> None:
    assert [step["name"] for step in ACTION["runs"]["steps"] if "${{" in step["run"]] == []


def test_every_input_is_used_and_every_used_one_declared() -> None:
    used = set(re.findall(r"inputs\.([a-z-]+)", (ROOT / "action.yml").read_text()))
    assert used == set(ACTION["inputs"])


@pytest.mark.skipif(shutil.which("bash") is None, reason="the action runs in bash")
@pytest.mark.parametrize(("target", "code"), [("builtin:gqa", 0), ("builtin:broken-mask", 1)])
def test_the_action_runs(tmp_path: Path, target: str, code: int) -> None:
    inputs = {name: given["default"] for name, given in ACTION["inputs"].items()}
    inputs |= {
        "targets": target,
        "arguments": "--probe future-token -q",
        "python": sys.executable,
        "reports": "out dir",
    }
    values = {
        name: re.sub(r"\$\{\{ inputs\.([a-z-]+) \}\}", lambda found: inputs[found[1]], text)
        for name, text in STEP["env"].items()
    }
    environment = {
        **os.environ,
        **values,
        "GITHUB_OUTPUT": str(tmp_path / "outputs"),
        "OMP_NUM_THREADS": "1",
    }
    ran = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", STEP["run"]],
        cwd=tmp_path,
        env=environment,
        check=False,
    )
    assert ran.returncode == code
    assert (tmp_path / "outputs").read_text().splitlines() == [
        f"exit-code={code}",
        "sarif=out dir/attncheck.sarif",
    ]
    assert sorted(path.name for path in (tmp_path / "out dir").iterdir()) == [
        "attncheck.sarif",
        "junit.xml",
        "report.html",
        "report.json",
    ]


def test_the_hooks_name_commands_that_exist() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert [hook["entry"].split()[:2] for hook in hooks] == [
        ["attncheck", "run"],
        ["attncheck", "validate"],
    ]
    assert re.search(hooks[1]["files"], "deep/attncheck.yaml")
    assert not re.search(hooks[1]["files"], "myattncheck.yaml")


def test_the_linters_of_the_hooks_are_those_of_the_constraints() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    revisions = {repo["repo"].rpartition("/")[2]: repo.get("rev") for repo in config["repos"]}
    constraints = (ROOT / "constraints.txt").read_text().splitlines()
    assert f"ruff=={revisions['ruff-pre-commit'][1:]}" in constraints
    hooks = [hook["id"] for repo in config["repos"] for hook in repo["hooks"]]
    assert {"ruff-check", "ruff-format", "mypy", "typos", "check-added-large-files"} <= set(hooks)


def test_the_workflow_runs_what_continuous_integration_runs() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    job = workflow["jobs"]["test"]
    assert job["steps"][-1]["run"] == ".ci/run"
    assert os.access(ROOT / ".ci/run", os.X_OK)
    project = (ROOT / "pyproject.toml").read_text()
    assert f'requires-python = ">={job["strategy"]["matrix"]["python"][0]}"' in project


def test_the_issue_form_asks_for_what_a_report_needs() -> None:
    form = yaml.safe_load((ROOT / ".github/ISSUE_TEMPLATE/bug.yml").read_text())
    fields = {field["id"]: field for field in form["body"]}
    assert "attncheck triage" in fields["triage"]["attributes"]["description"]
    assert "attncheck doctor" in fields["versions"]["attributes"]["description"]
    assert all(fields[name]["validations"]["required"] for name in ("model", "triage", "versions"))


def test_the_snippets_of_the_page_are_yaml_and_name_real_inputs() -> None:
    page = (ROOT / "docs" / "ci.md").read_text()
    snippets = [
        yaml.safe_load(text) for text in re.findall(r"^```yaml\n(.*?)^```", page, re.M | re.S)
    ]
    assert len(snippets) == 4
    steps = snippets[0]["jobs"]["attncheck"]["steps"]
    (used,) = [step["with"] for step in steps if step["uses"].startswith("attncheck/")]
    assert set(used) <= set(ACTION["inputs"])


def test_the_formats_of_the_page_exist() -> None:

    page = (ROOT / "docs" / "ci.md").read_text()
    assert set(re.findall(r"--report (\w+)=", page)) <= set(FORMATS)


@pytest.mark.skipif(shutil.which("bash") is None, reason="the sample runs in bash")
def test_the_matrix_splits_a_list_and_joins_the_parts(tmp_path: Path) -> None:
    jobs = yaml.safe_load((ROOT / "sample_configs" / "ci-matrix.yml").read_text())["jobs"]
    parts, (run,) = jobs["attncheck"]["strategy"]["matrix"]["shard"], _runs(jobs["attncheck"])
    assert f"$SHARD/{len(parts)}" in run
    parts, run = (
        parts[:2],
        run.replace(f"$SHARD/{len(parts)}", "$SHARD/2"),
    )  # empty parts only cost time
    (join,) = _runs(jobs["merge"])
    (tmp_path / "models.txt").write_text("builtin:gqa\nbuiltin:broken-mask\n")
    (tmp_path / "parts").mkdir()
    (tmp_path / "attncheck").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m attncheck "$@"\n')
    (tmp_path / "attncheck").chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(each for each in sys.path if each),
        "ATTNCHECK_PROBE": "kv-repeat\nfuture-token",
        "OMP_NUM_THREADS": "1",
    }

    def code(script: str, **more: str) -> int:
        command = ["bash", "-e", "-o", "pipefail", "-c", script]
        here = {**environment, **more}
        return subprocess.run(command, cwd=tmp_path, env=here, check=False).returncode

    for part in parts:
        assert code(run, SHARD=str(part)) == 0
        (tmp_path / f"part-{part}.json").rename(tmp_path / "parts" / f"part-{part}.json")
    assert code(join) == 1
    found = json.loads((tmp_path / "attncheck.json").read_text())
    assert [each["target"] for each in found["targets"]] == ["builtin:gqa", "builtin:broken-mask"]
    (tmp_path / "parts" / f"part-{parts[0]}.json").unlink()
    assert code(join) == 2


def _runs(job: dict[str, Any]) -> list[str]:
    """The scripts of a job, but for those that install."""
    scripts = [step["run"] for step in job["steps"] if "run" in step]
    return [script for script in scripts if not script.startswith("pip install")]
