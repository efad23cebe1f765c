"""A dry run of a release: build, check, install, list what is inside, use it in a sample repository.

python -m scripts.release [OUT] [--tag vX.Y.Z] [--alone]

The wheel is installed in a clean environment that sees the libraries of this one, and with `--alone`
in one that installs them too. Nothing is uploaded; `.github/workflows/release.yml` does that.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from attncheck.core.version import __version__

ROOT = Path(__file__).parents[1]
IN_WHEEL = (
    "attncheck/report/schema.json",
    "attncheck/report/templates/report.html",
    "attncheck/report/templates/report.css",
    "attncheck_probes/decode_paths/__init__.py",
    "attncheck_probes/py.typed",
)
IN_SDIST = ("tests/test_api.py", "scripts/release.py", "upstream/README.md", "LICENSE", "Makefile")
MOST_BYTES = 3_000_000


class ReleaseError(Exception):
    """Why this is no release, in one line."""


def tag_complaints(tag: str, changelog: str, version: str) -> Iterator[str]:
    """What keeps a tag from being this version: a line each."""
    if tag != f"v{version}":
        yield f"tag {tag} is not v{version}, the version of pyproject.toml"
    if not re.search(rf"^## {re.escape(version)}\b", changelog, re.MULTILINE):
        yield f"CHANGELOG.md has no section `## {version}`"


def build(out: Path) -> tuple[Path, Path]:
    """Build the wheel and the sdist into a folder, and have twine check them."""
    out.mkdir(parents=True, exist_ok=True)
    for old in (*out.glob("attncheck-*.whl"), *out.glob("attncheck-*.tar.gz")):
        old.unlink()
    _run([sys.executable, "-m", "build", "--outdir", str(out), str(ROOT)])
    (wheel,), (sdist,) = out.glob("attncheck-*.whl"), out.glob("attncheck-*.tar.gz")
    _run([sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist)])
    return wheel, sdist


def check_content(wheel: Path, sdist: Path) -> None:
    """Hold both archives to what they must contain, and the wheel to the package alone.

    Raises:
        ReleaseError: something is missing, too much, or too large.
    """
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    with tarfile.open(sdist) as archive_tar:
        sources = {name.partition("/")[2] for name in archive_tar.getnames()}
    lost = [*(set(IN_WHEEL) - names), *(set(IN_SDIST) - sources)]
    if lost:
        raise ReleaseError(f"missing: {', '.join(sorted(lost))}")
    tops = {name.partition("/")[0] for name in names}
    other = {
        top
        for top in tops
        if top not in ("attncheck", "attncheck_probes") and ".dist-info" not in top
    }
    if other:
        raise ReleaseError(f"the wheel holds {', '.join(sorted(other))} too")
    large = [each.name for each in (wheel, sdist) if each.stat().st_size > MOST_BYTES]
    if large:
        raise ReleaseError(f"larger than {MOST_BYTES} bytes: {', '.join(large)}")


def clean_environment(folder: Path, alone: bool) -> Path:
    """The Python of a new environment, which sees the libraries of this one unless it is alone."""
    venv.create(folder, with_pip=True, symlinks=os.name != "nt")
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    if not alone:
        command = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        home = Path(
            subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        )
        places = [each for each in sys.path if each.endswith("-packages")]
        (home / "libraries.pth").write_text("\n".join(places) + "\n")
    return python


def try_wheel(python: Path, wheel: Path, folder: Path) -> None:
    """Install the wheel and use it as a runner of GitHub Actions and pre-commit would."""
    _run(
        [
            str(python),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--force-reinstall",
            "--no-deps",
            str(wheel),
        ]
    )
    _run([str(python), "-m", "pip", "install", "--quiet", str(wheel)])
    where = "import attncheck, attncheck_probes; print(attncheck.__file__)"
    path = subprocess.run(
        [str(python), "-I", "-c", where], capture_output=True, text=True, check=True
    )
    if not Path(path.stdout.strip()).is_relative_to(python.parents[1]):
        raise ReleaseError(f"the environment imports {path.stdout.strip()}")
    from scripts.sample_repository import use

    use(python, folder)


def bill_of_materials(python: Path, out: Path) -> Path:
    """A CycloneDX list of what an environment holds, in `sbom.json`."""
    path = out / "sbom.json"
    command = [sys.executable, "-m", "cyclonedx_py", "environment", "--of", "JSON", "-o", str(path)]
    _run([*command, "--pyproject", str(ROOT / "pyproject.toml"), str(python)])
    names = {each["name"] for each in json.loads(path.read_text(encoding="utf-8"))["components"]}
    if not {"torch", "transformers"} <= names:
        raise ReleaseError("sbom.json lists neither torch nor transformers")
    return path


def _run(command: Sequence[str]) -> None:
    """Run a command with nothing of this checkout on its path.

    Raises:
        ReleaseError: it failed.
    """
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(command, env=plain, check=False, capture_output=True, text=True)
    if ran.returncode:
        raise ReleaseError(
            f"{' '.join(command)}: exit code {ran.returncode}\n{ran.stdout}{ran.stderr}"
        )


def main(given: Sequence[str] | None = None) -> int:
    """The dry run; 1 with a line where something is wrong."""
    parser = argparse.ArgumentParser(prog="scripts.release")
    parser.add_argument("out", nargs="?", type=Path, default=ROOT / "dist")
    parser.add_argument("--tag", help="the tag that this release has")
    parser.add_argument("--alone", action="store_true", help="install the libraries too")
    options = parser.parse_args(given)
    try:
        changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
        for complaint in tag_complaints(options.tag, changelog, __version__) if options.tag else ():
            raise ReleaseError(complaint)
        wheel, sdist = build(options.out)
        check_content(wheel, sdist)
        print(
            f"{wheel.name}: {wheel.stat().st_size >> 10} KiB, {sdist.name}: {sdist.stat().st_size >> 10} KiB"
        )
        with tempfile.TemporaryDirectory() as folder:
            python = clean_environment(Path(folder) / "venv", options.alone)
            try_wheel(python, wheel, Path(folder) / "repository")
            print(f"installed and used on Python {sys.version.split()[0]}")
            print(f"{bill_of_materials(python, options.out).name} written")
    except ReleaseError as error:
        print(f"no release: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
