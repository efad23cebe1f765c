"""The scripts that `attncheck run --repro` wrote about this release still show their faults, on
torch and transformers alone.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import transformers

RELEASE = "5.24.0"
SCRIPTS = sorted((Path(__file__).parent / "generated").glob("*.py"))


def test_there_are_scripts() -> None:
    assert len(SCRIPTS) >= 8


@pytest.mark.skipif(
    transformers.__version__ != RELEASE, reason=f"the scripts are about transformers {RELEASE}"
)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_generated_script_shows_its_fault(script: Path) -> None:
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert ran.returncode == 1, ran.stderr
    assert "largest difference" in ran.stdout
    assert "attncheck" not in script.read_text()
