"""Play the bench of triage, and write its table into docs/triage.md.

    python -m scripts.triage_reports [--table] [WORDS]

Each report is played in this process: its answer, the forwards and the CPU seconds are printed,
and at the end how many got the right one. `--table` only writes the table. WORDS are a regular
expression that selects reports. Exit code 1 where an answer is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import re
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))
PAGE = ROOT / "docs" / "triage.md"
TABLE = re.compile(r"\| they saw \| command \| answer \|\n\|---.*?\n(?=\n)", re.S)
RIGHT = 0.95


def main(arguments: list[str] | None = None) -> int:
    """Play the reports; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true", help="only write the table")
    parser.add_argument("words", nargs="?", default="")
    given = parser.parse_args(arguments)
    bench = importlib.import_module("triage_reports")
    reports, table = bench.REPORTS, bench.table

    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(TABLE.sub(lambda _: table(reports), text), encoding="utf-8")
    if given.table:
        return 0
    torch.set_num_threads(1)
    wrong = 0
    played = [each for each in reports if re.search(given.words, each.command)]
    for each in played:
        started, forwards = time.process_time(), _count()
        said = _answered(each.command)
        right = said.startswith(each.answer) and each.words in said
        wrong += not right
        cost = f"{forwards()} forwards, {time.process_time() - started:.1f} CPU s"
        print("right" if right else "WRONG", f"{each.answer}: {each.command} ({cost})", flush=True)
        if not right:
            print(f"    {said[:400]}")
    print(f"{len(played) - wrong} of {len(played)} right, {_healthy(played)} of them healthy")
    return int(len(played) - wrong < RIGHT * len(played))


def _healthy(played: list[Any]) -> int:
    return sum(each.healthy for each in played)


def _answered(command: str) -> str:
    """The words of one answer."""
    kernels_restored = importlib.import_module("triaging").kernels_restored
    from attncheck.__main__ import main as attncheck

    out = io.StringIO()
    with kernels_restored(), contextlib.redirect_stdout(out):
        attncheck(["triage", *shlex.split(command), "--no-progress"])
    return " ".join(out.getvalue().replace("`", "").split())


def _count() -> Callable[[], int]:
    """Counts the forwards of every model from now on."""
    from attncheck.model.loaded import LoadedModel

    counted, usual = [0], LoadedModel.count

    def count(self: LoadedModel, tokens: int) -> None:
        counted[0] += 1
        usual(self, tokens)

    def ended() -> int:
        LoadedModel.count = usual  # type: ignore[method-assign]
        return counted[0]

    LoadedModel.count = count  # type: ignore[method-assign]
    return ended


if __name__ == "__main__":
    raise SystemExit(main())
