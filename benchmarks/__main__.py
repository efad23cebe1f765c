"""Every part of the benchmark, one table.

    python -m benchmarks [--quick] [--real PATH] [--part NAME …] [--every N] [--folder benchmarks]
    [--page docs/cost.md]

Writes `results.json` and `results.md` into the folder, and the table between the marks of the page
where it has them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.growth import growth
from benchmarks.overhead import overhead
from benchmarks.processes import machine
from benchmarks.startup import startup
from benchmarks.sweep import sweep
from benchmarks.table import put, table

SMALL = "builtin:gqa"
REPEATS = {"startup": 5, "small": 3, "real": 2}
QUICK = {"startup": 2, "small": 1, "real": 1}
EVERY, EVERY_QUICK = 10, 60


def parts(options: argparse.Namespace) -> dict[str, Callable[[], Any]]:
    from attncheck.core import registry

    probes, repeats = registry.select(), QUICK if options.quick else REPEATS
    some = probes[:5] if options.quick else probes
    real = [(options.real, some, repeats["real"])] if options.real else []
    every = options.every or (EVERY_QUICK if options.quick else EVERY)
    return {
        "startup": lambda: startup(repeats["startup"]),
        "overhead": lambda: [
            overhead(model, "float32", chosen, times)
            for model, chosen, times in [(SMALL, probes, repeats["small"]), *real]
        ],
        "growth": lambda: growth(some, options.quick),
        "sweep": lambda: sweep(every, os.cpu_count() or 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="fewer repeats and sizes, five probes on the real model and in the growth",
    )
    parser.add_argument("--real", help="a real model: a .gguf file, a folder or a hub id")
    parser.add_argument(
        "--part", action="append", help="only these: startup, overhead, growth, sweep"
    )
    parser.add_argument(
        "--every", type=int, help="sweep over every n-th config type; 1 is all of them"
    )
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent)
    parser.add_argument("--page", type=Path, help="a page with a place for the table")
    options = parser.parse_args()
    results: dict[str, Any] = {"machine": machine()}
    for name, measure in parts(options).items():
        if not options.part or name in options.part:
            print(f"measuring {name} ...", file=sys.stderr, flush=True)
            results[name] = measure()
    written(results, options)


def written(results: dict[str, Any], options: argparse.Namespace) -> None:
    text = table(results)
    print(text)
    options.folder.mkdir(parents=True, exist_ok=True)
    (options.folder / "results.json").write_text(
        json.dumps(results, indent=1) + "\n", encoding="utf-8"
    )
    (options.folder / "results.md").write_text(text, encoding="utf-8")
    if options.page and not put(options.page, text):
        print(f"{options.page} has no place for the table", file=sys.stderr)


if __name__ == "__main__":
    main()
