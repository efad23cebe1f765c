"""The folders of upstream faults are whole, and their patches apply to the release they are for.
`make upstream` runs the scripts.
"""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import pytest
import transformers

from scripts.upstream import FILES, HOME, Mend, names, package, patched, patched_file

RELEASE = "5.24.0"
ALLOWED = {"torch", "transformers"}


@pytest.mark.parametrize("name", names())
def test_a_folder_is_whole_and_its_issue_holds_script_and_patch(name: str) -> None:
    assert sorted(each.name for each in (HOME / name).iterdir()) == list(FILES)
    script, patch, issue = (
        (HOME / name / each).read_text() for each in ("script.py", "mend.patch", "issue.md")
    )
    assert script.rstrip() in issue
    assert patch.rstrip() in issue
    assert f"({name}/issue.md)" in (HOME / "README.md").read_text()
    tree = ast.parse(script)
    modules = [each.module or "" for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)]
    modules += [
        one.name for each in ast.walk(tree) if isinstance(each, ast.Import) for one in each.names
    ]
    assert {each.partition(".")[0] for each in modules} <= ALLOWED


@pytest.mark.skipif(transformers.__version__ != RELEASE, reason=f"the patches are for {RELEASE}")
@pytest.mark.skipif(shutil.which("patch") is None, reason="no `patch` here")
@pytest.mark.parametrize("name", names())
def test_a_patch_changes_the_copy_and_not_the_package(name: str, tmp_path: Path) -> None:
    file = patched_file(HOME / name / "mend.patch")
    installed = package().parent / file
    before = installed.read_bytes()
    patched(name, tmp_path)
    changed = tmp_path / file
    assert installed.read_bytes() == before != changed.read_bytes()
    ast.parse(changed.read_text())
    assert (tmp_path / "transformers" / "__init__.py").is_symlink()


def test_a_mend_needs_a_fault_and_leaves_rounding() -> None:
    assert Mend("a", 1.0, 1e-9).works
    assert not Mend("a", 1.0, 1e-2).works
    assert not Mend("a", 1e-9, 1e-9).works
    assert Mend("a", float("inf"), 0.0).works
