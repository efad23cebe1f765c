"""Work in fresh processes, numbers with their spread, and the machine that they come from."""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from math import log
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

import psutil

P = ParamSpec("P")
T = TypeVar("T")


class Spread(NamedTuple):
    """Repeated measurements of one number: the median, the least and the most."""

    middle: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Each measurement against the one taken next to it, so that a slow minute of the machine slows
    both.
    """
    return spread([one / other for one, other in zip(ours, theirs, strict=True)])


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """How a value grows with a size: 1 is linear, 2 quadratic; the slope of a line through the
    logarithms.
    """
    slope = statistics.linear_regression(
        [log(size) for size in sizes], [log(max(value, 1e-9)) for value in values]
    ).slope
    return float(slope)


def apart(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function in a fresh process; a process that dies is an error, not a wait."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args, **kwargs).result()


def machine() -> str:
    """One line: what the numbers were measured on."""
    versions = ", ".join(
        f"{name} {version(name)}" for name in ("attncheck", "torch", "transformers")
    )
    memory = psutil.virtual_memory().total / 2**30
    threads = os.environ.get("OMP_NUM_THREADS")
    limited = f", {threads} thread{'s' if threads != '1' else ''} a process" if threads else ""
    return (
        f"{_processor()}, {os.cpu_count()} cores{limited}, {memory:.0f} GiB; {platform.system()}, "
        f"Python {platform.python_version()}, {versions}"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )


def show(result: Any, path: str | None) -> None:
    """Print a result as JSON, and write it to a file where one is named."""
    print(text := json.dumps(result, indent=1))
    if path:
        Path(path).write_text(text, encoding="utf-8")
