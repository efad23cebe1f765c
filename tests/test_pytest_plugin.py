"""The pytest plug-in, in a pytest of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:timeout",
        "--strict-markers",
        *arguments,
    ]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_one_test_for_each_probe_with_the_table_as_message(tmp_path: Path) -> None:
    ran = run_pytest(
        tmp_path,
        "--attncheck=builtin:gqa,builtin:broken-mask",
        "--attncheck-probe=future-token,kv-repeat",
    )
    assert ran.returncode == 1, ran.stdout
    assert "1 failed, 3 passed" in ran.stdout
    assert "future-token[builtin:broken-mask]" in ran.stdout
    assert "max|Δ|" in ran.stdout
    assert "Traceback" not in ran.stdout
    assert "pytest_plugin.py" not in ran.stdout


def test_the_suite_of_the_ini_file(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nattncheck_suite = suite.yaml\n")
    (tmp_path / "test_own.py").write_text("def test_own(): pass\n")
    (tmp_path / "suite.yaml").write_text(
        "models: [builtin:broken-mask, builtin:alibi]\nprobes: [future-token, position-reset]\n"
        "expected_failures: [{model: '*mask', reason: planted}]\n"
    )
    ran = run_pytest(tmp_path, "-rxs", "-k", "own or future or (position and alibi)")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "2 passed, 1 skipped, 1 deselected, 1 xfailed" in ran.stdout
    assert "fail, expected: planted" in ran.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--attncheck=builtin:gqaa"],
            "ERROR: attncheck: builtin:gqaa: unknown built-in model `gqaa`: did you mean `gqa`?",
        ),
        (
            ["--attncheck=builtin:gqa", "--attncheck-probe=x-y"],
            "ERROR: attncheck: unknown probe `x-y`",
        ),
        (["--attncheck-suite=no.yaml"], "ERROR: attncheck: no.yaml: cannot be read"),
    ],
)
def test_mistakes_are_usage_errors(tmp_path: Path, arguments: list[str], message: str) -> None:
    ran = run_pytest(tmp_path, *arguments)
    assert ran.returncode == 4
    assert message in ran.stderr
    assert "Traceback" not in ran.stderr


def test_pytest_without_the_options_loads_no_torch(tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text(
        "import sys\ndef test_own(): assert 'torch' not in sys.modules\n"
    )
    assert run_pytest(tmp_path).returncode == 0
