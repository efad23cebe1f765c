"""Faults of transformers with a proposed mend, tried on a copy of the installed package.

python -m scripts.upstream [NAME…]

Each folder of `upstream/` holds `script.py` (which needs torch and transformers only and prints
`observed NUMBER`), `mend.patch` and `issue.md`. The script runs against the installed package and
against a copy of it with the patch: the number has to fall to rounding.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

HOME = Path(__file__).parents[1] / "upstream"
FILES = ("issue.md", "mend.patch", "script.py")
FAULT, ROUNDING = 1e-3, 1e-5


@dataclass(frozen=True)
class Mend:
    """What a script printed without and with its patch."""

    name: str
    before: float
    after: float

    @property
    def works(self) -> bool:
        """Whether there is a fault, and the patch leaves rounding of it."""
        return self.before > FAULT and self.after < ROUNDING


def names() -> list[str]:
    """The folders of faults."""
    return sorted(each.name for each in HOME.iterdir() if each.is_dir())


def patched_file(patch: Path) -> str:
    """The file of the package that a patch changes, such as `transformers/cache_utils.py`."""
    first = next(line for line in patch.read_text().splitlines() if line.startswith("+++ b/"))
    return first.removeprefix("+++ b/")


def package() -> Path:
    """The folder of the installed transformers."""
    spec = find_spec("transformers")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def patched(name: str, folder: Path) -> None:
    """A copy of the package in a folder, by links, with one patched file.

    Raises:
        CalledProcessError: the patch does not apply to the installed release.
    """
    patch = HOME / name / "mend.patch"
    shutil.copytree(package(), folder / "transformers", copy_function=os.symlink)
    changed = folder / patched_file(patch)
    source = changed.resolve()
    changed.unlink()
    shutil.copy(source, changed)
    command = ["patch", "--quiet", "-p1", "-d", str(folder), "-i", str(patch)]
    subprocess.run(command, check=True)


def observed(name: str, *paths: Path) -> float:
    """The number that a script prints, with folders in front of the installed packages."""
    given = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", str(HOME / name / "script.py")]
    ran = subprocess.run(command, env=given, capture_output=True, text=True, check=True)
    line = next(each for each in ran.stdout.splitlines() if each.startswith("observed "))
    return float(line.split()[1])


def mends(wanted: Sequence[str]) -> Iterator[Mend]:
    """Each fault without and with its patch."""
    for name in wanted or names():
        with tempfile.TemporaryDirectory() as folder:
            patched(name, Path(folder))
            yield Mend(name, observed(name), observed(name, Path(folder)))


def main(wanted: Sequence[str]) -> int:
    """Print each fault; 1 where a patch does not mend it."""
    code = 0
    for mend in mends(wanted):
        print(
            f"{mend.name:40s} {mend.before:.2g} -> {mend.after:.2g}{'' if mend.works else '  NOT MENDED'}"
        )
        code |= not mend.works
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
