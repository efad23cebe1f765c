"""How seconds and memory of the default probes grow with layers, tokens and vocabulary, on random
models.

    python -m benchmarks.growth [--quick] [--axis NAME …] [--json FILE]

An exponent of 1 is linear. The same forwards without attncheck show the growth of the model itself:
attention is quadratic in tokens. The overhead is linear if its ratio to them does not grow, and is
flagged otherwise.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from benchmarks.models import Shape
from benchmarks.overhead import overhead
from benchmarks.processes import exponent, show

AXES: dict[str, tuple[int, ...]] = {
    "layers": (2, 4, 8, 16),
    "length": (24, 48, 96, 192),
    "vocabulary": (1 << 10, 1 << 13, 1 << 15, 1 << 17),
}
WORDS = {"layers": "layers", "length": "tokens", "vocabulary": "vocabulary"}
QUICK = 2
LINEAR = 1.1
"""Constant costs of small models lower exponents; repeats of one point differ by a few percent."""


def growth(
    probes: list[str],
    quick: bool = False,
    axes: Sequence[str] = tuple(AXES),
    dtype: str = "float32",
) -> dict[str, Any]:
    """One table per axis; the other sizes stay at those of `Shape`."""
    return {
        axis: grown(axis, AXES[axis][:QUICK] if quick else AXES[axis], probes, dtype)
        for axis in axes
    }


def grown(axis: str, sizes: tuple[int, ...], probes: list[str], dtype: str) -> dict[str, Any]:
    points = [overhead(Shape()._replace(**{axis: size}), dtype, probes) for size in sizes]
    sides = [point["all"] for point in points]
    seconds, plain = (
        [side["seconds"].middle for side in sides],
        [side["bare_seconds"].middle for side in sides],
    )
    memory = [point["memory"]["beyond_mib"] for point in points]
    found = {
        "sizes": sizes,
        "forwards": [side["forwards"] for side in sides],
        "seconds": seconds,
        "bare_seconds": plain,
        "ratios": [one / other for one, other in zip(seconds, plain, strict=True)],
        "memory_mib": memory,
        "allowed_mib": [point["memory"]["allowed_mib"] for point in points],
        "exponent": exponent(sizes, seconds),
        "bare_exponent": exponent(sizes, plain),
        "memory_exponent": exponent(sizes, memory),
    }
    return {**found, "flags": flags(found)}


def flags(found: dict[str, Any]) -> list[str]:
    """A phrase for each measurement that grows faster than it should."""
    limit = max(LINEAR, found["bare_exponent"] + LINEAR - 1)
    wrong = (
        [f"seconds grow with exponent {found['exponent']:.2f}"] if found["exponent"] > limit else []
    )
    if found["memory_exponent"] > LINEAR:
        wrong.append(f"memory grows with exponent {found['memory_exponent']:.2f}")
    over = [
        size
        for size, mib, most in zip(
            found["sizes"], found["memory_mib"], found["allowed_mib"], strict=True
        )
        if mib > most
    ]
    return wrong + [f"memory above the formula at {size}" for size in over]


def main() -> None:
    from attncheck.core import registry

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--axis", action="append", choices=sorted(AXES))
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--json")
    options = parser.parse_args()
    result = growth(registry.select(), options.quick, options.axis or tuple(AXES), options.dtype)
    show(result, options.json)


if __name__ == "__main__":
    main()
