"""Kill a sweep again and again, and check that each one resumes to the report of a whole run.

    python scripts/kill_sweep.py --kills 20

Each sweep runs in a process group of its own, as a shell or a CI runner starts it. At a random
moment when results exist, the whole group gets SIGKILL (or --signal). What is on disk then must be
readable and must not look like a finished run; the same command again must end with the report of
a run that nobody killed. Prints a line for each kill; the exit code is 1 if one of them failed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

TARGETS = ("builtin:gqa", "builtin:broken-mask", "builtin:alibi", "config:nosuch")
PROBES = ("kv-repeat", "kv-groups", "labels")
VARYING = ("seconds", "load_seconds", "started")
"""What differs from run to run, whether killed or not."""
NOT_FINISHED = (129, 130, 143)


@dataclass(frozen=True)
class SweepCommand:
    """One sweep with a folder for its reports, as typed in a shell."""

    home: Path
    targets: Sequence[str] = TARGETS
    probes: Sequence[str] = PROBES

    @property
    def folder(self) -> Path:
        """Where each target's report is kept."""
        return self.home / "sweep"

    @property
    def report(self) -> Path:
        """The report of all."""
        return self.home / "report.json"

    def arguments(self) -> list[str]:
        """What follows `attncheck`, for its folder as working directory."""
        probes = [text for name in self.probes for text in ("--probe", name)]
        options = ["--jobs", "2", "--sweep-dir", self.folder.name, "--format", "quiet"]
        report = ["--report", f"json={self.report.name}"]
        return ["run", *self.targets, *probes, *options, *report]

    def start(self) -> subprocess.Popen[str]:
        """Begin it in a process group of its own."""
        self.home.mkdir(parents=True, exist_ok=True)
        return subprocess.Popen(
            [sys.executable, "-m", "attncheck", *self.arguments()],
            start_new_session=True,
            cwd=self.home,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def results(self) -> int:
        """How many findings and failed targets are on disk now, whole or not."""
        return sum(_findings(path) for path in self.folder.glob("*.json"))

    def whole(self) -> dict[str, Any]:
        """Run it to its end; its report without what varies."""
        done = self.start()
        said, _ = done.communicate()
        if done.returncode not in (0, 1, 2):
            raise RuntimeError(f"exit code {done.returncode}: {said}")
        found: dict[str, Any] = comparable(json.loads(self.report.read_text(encoding="utf-8")))
        return found


def _findings(path: Path) -> int:
    try:
        targets = json.loads(path.read_text(encoding="utf-8"))["targets"]
    except (OSError, ValueError):
        return 0
    return sum(len(each["results"]) or each["error"] is not None for each in targets)


def comparable(data: Any) -> Any:
    """Data of a report without what varies."""
    if isinstance(data, dict):
        return {key: comparable(value) for key, value in data.items() if key not in VARYING}
    return [comparable(each) for each in data] if isinstance(data, list) else data


def kill(command: SweepCommand, at_least: int, delay: float, number: int) -> tuple[int, int]:
    """Start it, kill its group `delay` seconds after so many results exist; how many were there,
    and its exit code.
    """
    running = command.start()
    while running.poll() is None and command.results() < at_least:
        time.sleep(0.02)
    time.sleep(delay)
    found = command.results()
    with suppress(ProcessLookupError):
        os.killpg(running.pid, number)
    running.communicate()
    return found, running.returncode


def complaints(command: SweepCommand, want: dict[str, Any]) -> Iterator[str]:
    """What is wrong with what a killed sweep left behind, and with the one that resumes it."""
    if command.report.exists():
        left = json.loads(command.report.read_text(encoding="utf-8"))
        finished = len(left["targets"]) == len(command.targets) and "incomplete" not in left
        if not finished and left["exit_code"] not in NOT_FINISHED:
            yield f"a report of {len(left['targets'])} targets with exit code {left['exit_code']}"
    if command.whole() != want:
        yield "the resumed report differs"
    if list(command.folder.glob("*.part")):
        yield "half-written files are left"


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill as often as asked; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--signal", default="SIGKILL")
    given = parser.parse_args(arguments)
    home = Path(mkdtemp(prefix="kill-sweep-"))
    want = SweepCommand(home / "whole").whole()
    failed = 0
    for kill_number in range(given.seed, given.seed + given.kills):
        command, draw = SweepCommand(home / str(kill_number)), random.Random(kill_number)
        at_least, delay = draw.randint(1, 9), draw.uniform(0, 0.3)
        found, _ = kill(command, at_least, delay, signal.Signals[given.signal])
        wrong = list(complaints(command, want))
        failed += bool(wrong)
        verdict = "; ".join(wrong) or "resumed to the same report"
        print(f"kill {kill_number} with {found} results on disk: {verdict}", flush=True)
    print(f"{given.kills - failed} of {given.kills} kills resumed to the same report")
    shutil.rmtree(home)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
