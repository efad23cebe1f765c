"""A repository that uses the GitHub Action and the pre-commit hooks, and what their runners would
do in it: python -m scripts.sample_repository [PYTHON] (one in which attncheck is installed).
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
HEALTHY = "models: [builtin:gqa]\nprobes: [kv-repeat, future-token]\n"
BROKEN = HEALTHY.replace("gqa", "broken-mask")
MISTYPED = HEALTHY.replace("probes", "probs")
EXPRESSION = re.compile(r"\$\{\{ inputs\.([a-z-]+) \}\}")
REPORTS = ("report.json", "junit.xml", "attncheck.sarif", "report.html")


class RunnerError(Exception):
    """A step of a runner came out otherwise than it should."""


def use(python: Path, folder: Path) -> None:
    """Run action and hooks in a new repository with a healthy, a broken and a mistyped suite.

    Raises:
        RunnerError: an exit code or a report is not the one that it should be.
    """
    folder.mkdir(parents=True)
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    for suite, code in ((HEALTHY, 0), (BROKEN, 1), (MISTYPED, 2)):
        (folder / "attncheck.yaml").write_text(suite, encoding="utf-8")
        subprocess.run(["git", "-C", str(folder), "add", "--all"], check=True)
        _expect("action", code, run_action(python, folder))
        _expect("hook attncheck", code, run_hook("attncheck", python, folder))
        hook = run_hook("attncheck-validate", python, folder)
        _expect("hook attncheck-validate", 2 if code == 2 else 0, hook)
        there = all((folder / "attncheck-reports" / name).is_file() for name in REPORTS)
        if code < 2 and not there:
            raise RunnerError("the action left no reports")


def _expect(what: str, wanted: int, got: int) -> None:
    if wanted != got:
        raise RunnerError(f"{what}: exit code {got}, expected {wanted}")


def run_action(python: Path, folder: Path) -> int:
    """The exit code of the steps of `action.yml`, run as a runner does: each in bash, with its
    inputs in the environment.
    """
    action: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    given = {name: each["default"] for name, each in action["inputs"].items()}
    given |= {"python": str(python), "package": ""}
    for step in action["runs"]["steps"]:
        if step.get("if") == "inputs.package != ''" and not given["package"]:
            continue
        values = {
            name: EXPRESSION.sub(lambda at: given[at[1]], str(value))
            for name, value in step["env"].items()
        }
        code = _run(["bash", "-e", "-o", "pipefail", "-c", step["run"]], folder, python, values)
        if code:
            return code
    return 0


def run_hook(name: str, python: Path, folder: Path) -> int:
    """The exit code of a hook of `.pre-commit-hooks.yaml` over the files that git knows."""
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    hook = next(each for each in hooks if each["id"] == name)
    command = shlex.split(hook["entry"])
    if hook.get("pass_filenames", True):
        listed = subprocess.run(
            ["git", "-C", str(folder), "ls-files"], capture_output=True, text=True, check=True
        )
        command += [each for each in listed.stdout.split() if re.search(hook["files"], each)]
    return _run(command, folder, python, {})


def _run(command: list[str], folder: Path, python: Path, values: Mapping[str, str]) -> int:
    plain = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "ATTNCHECK_SUITE")
    }
    here = {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    outputs = {"GITHUB_OUTPUT": str(folder / ".git" / "outputs")}
    ran = subprocess.run(
        command,
        cwd=folder,
        env={**plain, **here, **outputs, **values},
        check=False,
        capture_output=True,
    )
    return ran.returncode


def main() -> int:
    """Try it with this Python, or the one that is named."""
    python = Path(sys.argv[1] if len(sys.argv) > 1 else sys.executable)
    with tempfile.TemporaryDirectory() as folder:
        use(python, Path(folder) / "repository")
    print("action and hooks run in a sample repository: healthy 0, broken 1, mistyped 2")
    return 0


if __name__ == "__main__":
    sys.exit(main())
