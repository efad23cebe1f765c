"""Break single places of the core, one at a time, and run the tests of each.

    python -m scripts.mutants [--sample N] [--seed S] [--only TEXT] [--jobs J]

Takes N mutants of every file that `core.yaml` lists (all with `--sample 0`), writes each into a
copy of the tree and runs the tests that belong to the file until one fails. Prints a line for each
mutant that no test noticed and is not among `accepted`, and the share that was killed. Exit code 1
below 95 %.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import yaml

from scripts.mutants.operators import Mutant, mutants_of, one_line

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("core.yaml")
PARTS = ("attncheck", "probes", "tests", "scripts", "sample_configs", "benchmarks", "docs")
FILES = ("pyproject.toml", "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
LEAST_KILLED = 0.95
TIME_LIMIT = 900.0
PRELOADED = ("torch", "transformers", "pytest", "transformers.models.llama.modeling_llama")


@dataclass(frozen=True)
class Plan:
    """The tests of each file, and the mutants that change nothing by their names, with reasons."""

    tests: dict[str, list[str]]
    accepted: dict[str, str]


def read_plan(path: Path = LIST) -> Plan:
    """The plan of a YAML file: `files` (file: tests) and `accepted` (file: {change: reason})."""
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    accepted = {
        f"{file}: {one_line(change)}": reason
        for file, changes in (data.get("accepted") or {}).items()
        for change, reason in changes.items()
    }
    return Plan(tests=data["files"], accepted=accepted)


def main(arguments: list[str] | None = None) -> int:
    """Run the mutants of the command line; the exit code."""
    options = _options(arguments)
    plan = read_plan()
    chosen = [
        each
        for file in plan.tests
        for each in _sampled(file, options.sample, options.seed)
        if options.only in each.name and each.name not in plan.accepted
    ]
    for module in PRELOADED:
        importlib.import_module(module)
    survivors = _survivors(chosen, plan, options.jobs)
    share = 1 - len(survivors) / max(1, len(chosen))
    print(f"{len(chosen)} mutants, {len(chosen) - len(survivors)} killed ({share:.1%})")
    return int(share < LEAST_KILLED)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="mutants", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sample", type=int, default=6, help="mutants of each file; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="mutants whose file or text holds this")
    parser.add_argument("--jobs", type=int, default=2)
    return parser.parse_args(arguments)


def _sampled(file: str, amount: int, seed: int) -> list[Mutant]:
    everything = mutants_of(file, (ROOT / file).read_text(encoding="utf-8"))
    if not amount or amount >= len(everything):
        return everything
    chosen = random.Random(f"{seed} {file}").sample(everything, amount)
    return sorted(chosen, key=lambda each: each.start)


def _survivors(mutants: list[Mutant], plan: Plan, jobs: int) -> list[Mutant]:
    """Those that no test noticed, in the order of the mutants."""
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(jobs) as pool:
        trees: SimpleQueue[Path] = SimpleQueue()
        for _ in range(jobs):
            trees.put(tree := stack.enter_context(_copied_tree()))
        unsound = [tests for tests in _sets(mutants, plan) if _exit_code(tree, tests)]
        if unsound:
            sys.exit(f"these tests fail without any mutant: {' '.join(unsound[0])}")

        def survives(mutant: Mutant) -> bool:
            tree = trees.get()
            try:
                alive = not _killed(tree, mutant, plan.tests[mutant.file])
            finally:
                trees.put(tree)
            if alive:
                print(f"survived: {mutant.file}:{mutant.line}: {mutant.change}", flush=True)
            return alive

        living = pool.map(survives, mutants)
        return [each for each, alive in zip(mutants, living, strict=True) if alive]


def _sets(mutants: list[Mutant], plan: Plan) -> list[list[str]]:
    """Each set of tests once."""
    return [list(each) for each in dict.fromkeys(tuple(plan.tests[m.file]) for m in mutants)]


@contextlib.contextmanager
def _copied_tree() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        for part in PARTS:
            if (ROOT / part).is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / part, Path(folder, part), ignore=ignored)
        for file in FILES:
            shutil.copy(ROOT / file, folder)
        yield Path(folder)


def _killed(tree: Path, mutant: Mutant, tests: list[str]) -> bool:
    """Whether a test fails, or none ends in time, with the mutant in place of the line."""
    path = tree / mutant.file
    source = path.read_text(encoding="utf-8")
    path.write_text(mutant.applied(source), encoding="utf-8")
    try:
        return _exit_code(tree, tests) != 0
    finally:
        path.write_text(source, encoding="utf-8")


def _exit_code(tree: Path, tests: list[str]) -> int:
    """The exit code of pytest in a fork of this process, which has torch loaded already."""
    child = os.fork()
    if not child:
        _run_tests(tree, tests)
    deadline = time.monotonic() + TIME_LIMIT
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -signal.SIGKILL


def _run_tests(tree: Path, tests: list[str]) -> None:
    """Run pytest on a tree and end this process."""
    code: Any = 1
    try:
        os.setsid()
        os.chdir(tree)
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        places = [str(tree), str(tree / "probes")]
        os.environ["PYTHONPATH"] = os.pathsep.join(places)
        sys.path[:0] = places
        sys.dont_write_bytecode = True
        for name in [name for name in sys.modules if name.split(".")[0] in ("scripts", "tests")]:
            del sys.modules[name]
        pytest = importlib.import_module("pytest")
        code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests])
    finally:
        os._exit(int(code))


if __name__ == "__main__":
    sys.exit(main())
