"""The overhead of attncheck over its forwards: ratios, both sides measured one after the other.

    python -m benchmarks.overhead --model PATH [--dtype float32] [--probe NAME …] [--repeats N]
    [--json FILE]

See `benchmarks.checked` for what the bare side does. Each side runs in a fresh process; its peak
memory is taken on the way.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from benchmarks.checked import Run, bare, checked
from benchmarks.memory import summary
from benchmarks.models import Shape
from benchmarks.processes import apart, ratios, show, spread


def overhead(
    source: str | Shape, dtype: str, probes: list[str], repeats: int = 1
) -> dict[str, Any]:
    """Ratios for all probes, and for the first five of them, from the same runs."""
    runs: list[Run] = []
    plain: list[list[float]] = []
    for _ in range(repeats):
        runs.append(apart(checked, source, dtype, probes))
        plain.append(apart(bare, source, dtype, runs[-1].calls))
    sets = {"five": 5, "all": len(probes)} if len(probes) > 5 else {"all": len(probes)}
    return {
        "model": str(source),
        "dtype": dtype,
        "verdicts": runs[-1].verdicts,
        "memory": summary(max(runs, key=lambda run: run.beyond)),
        "seconds_by_probe": runs[-1].seconds,
        "bare_seconds_by_probe": dict(zip(runs[-1].seconds, plain[-1], strict=True)),
        **{name: _sides(runs, plain, count) for name, count in sets.items()},
    }


def _sides(runs: Sequence[Run], plain: Sequence[Sequence[float]], count: int) -> dict[str, Any]:
    ours = [sum(list(run.seconds.values())[:count]) for run in runs]
    theirs = [sum(each[:count]) for each in plain]
    return {
        "probes": count,
        "forwards": sum(len(made) for made in runs[-1].calls[:count]),
        "seconds": spread(ours),
        "bare_seconds": spread(theirs),
        "ratio": ratios(ours, theirs),
    }


def main() -> None:
    from attncheck.core import registry

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--probe", action="append")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--json")
    options = parser.parse_args()
    result = overhead(
        options.model, options.dtype, options.probe or registry.select(), options.repeats
    )
    show(result, options.json)


if __name__ == "__main__":
    main()
