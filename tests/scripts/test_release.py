"""What a release is held to, without building one (`make release` does)."""

from __future__ import annotations

import io
import re
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from attncheck.core.version import __version__
from scripts.release import (
    IN_SDIST,
    IN_WHEEL,
    ROOT,
    ReleaseError,
    check_content,
    clean_environment,
    tag_complaints,
)
from scripts.sample_repository import HEALTHY, MISTYPED, RunnerError, _expect, run_hook

PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_a_tag_is_the_version_and_the_changelog_has_it() -> None:
    assert list(tag_complaints("v1.2.0", "# Changelog\n\n## 1.2.0\n", "1.2.0")) == []
    assert list(tag_complaints("v1.2.1", "## 1.2.0\n", "1.2.0")) == [
        "tag v1.2.1 is not v1.2.0, the version of pyproject.toml"
    ]
    assert list(tag_complaints("v1.2.0", "## 1.2.0rc1\n## Unreleased\n", "1.2.0")) == [
        "CHANGELOG.md has no section `## 1.2.0`"
    ]


def archives(
    folder: Path, wheel_names: tuple[str, ...], sources: tuple[str, ...]
) -> tuple[Path, Path]:
    wheel, sdist = folder / "a.whl", folder / "a.tar.gz"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in wheel_names:
            archive.writestr(name, "")
    with tarfile.open(sdist, "w:gz") as archive_tar:
        for name in sources:
            archive_tar.addfile(tarfile.TarInfo(f"attncheck-1/{name}"), io.BytesIO())
    return wheel, sdist


def test_archives_hold_what_they_must_and_the_wheel_no_more(tmp_path: Path) -> None:
    check_content(*archives(tmp_path, (*IN_WHEEL, "attncheck-1.dist-info/METADATA"), IN_SDIST))
    with pytest.raises(
        ReleaseError, match=r"missing: attncheck/report/schema\.json, tests/test_api\.py"
    ):
        check_content(*archives(tmp_path, IN_WHEEL[1:], IN_SDIST[1:]))
    with pytest.raises(ReleaseError, match="the wheel holds tests too"):
        check_content(*archives(tmp_path, (*IN_WHEEL, "tests/a.py"), IN_SDIST))


def test_everything_that_archives_must_hold_is_there() -> None:
    for name in (*IN_WHEEL, *IN_SDIST):
        path = ROOT / ("probes/" if name.startswith("attncheck_probes") else "") / name
        assert path.is_file(), name


def test_the_recipe_asks_for_what_the_package_asks_for() -> None:
    listed = re.search(r"^dependencies = \[\n(.*?)^\]", PROJECT, re.DOTALL | re.MULTILINE)
    assert listed is not None
    wanted = {each.replace("torch>", "pytorch>") for each in re.findall(r'"(.*?)"', listed[1])}
    recipe = (ROOT / "recipe" / "meta.yaml").read_text(encoding="utf-8")
    run = recipe.partition("  run:\n")[2].partition("\ntest:")[0]
    given = {line.strip(" -").replace(" ", "") for line in run.splitlines() if line.strip()}
    assert given - {"python>=3.10"} == wanted
    assert f'version = "{__version__}"' in recipe


def test_what_is_published_was_installed_before_and_no_password_is_kept() -> None:
    flow: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    jobs = flow["jobs"]
    assert (jobs["install"]["needs"], jobs["publish"]["needs"]) == ("build", "install")
    assert jobs["publish"]["permissions"]["id-token"] == "write"
    assert jobs["install"]["strategy"]["matrix"]["python"] == ["3.10", "3.11", "3.12", "3.13"]
    scripts = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert not [each for each in scripts if "${{" in each]
    assert "secrets." not in (ROOT / ".github/workflows/release.yml").read_text()


def test_the_image_copies_what_is_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    copied = re.findall(r"^COPY (.*) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    for name in " ".join(copied).split():
        assert f"!{name}" in ignored
        assert (ROOT / name).exists()


def test_a_hook_runs_over_the_files_that_git_knows(tmp_path: Path) -> None:
    import subprocess

    python = Path(sys.executable)
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    for suite, code in ((HEALTHY, 0), (MISTYPED, 2)):
        (tmp_path / "attncheck.yaml").write_text(suite)
        subprocess.run(["git", "-C", str(tmp_path), "add", "--all"], check=True)
        assert run_hook("attncheck-validate", python, tmp_path) == code
    with pytest.raises(RunnerError, match="hook: exit code 2, expected 0"):
        _expect("hook", 0, 2)


def test_a_clean_environment_sees_libraries_and_not_this_checkout(tmp_path: Path) -> None:
    import subprocess

    python = clean_environment(tmp_path / "venv", alone=False)
    ask = "import sys, yaml; print(sys.prefix)"
    done = subprocess.run(
        [str(python), "-I", "-c", ask], capture_output=True, text=True, check=True
    )
    assert Path(done.stdout.strip()) == tmp_path / "venv"
