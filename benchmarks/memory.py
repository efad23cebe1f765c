"""Peak memory beyond the weights and one forward, probe by probe, against the formula of
docs/scale.md.

    python -m benchmarks.memory --model PATH [--dtype float32] [--length N] [--probe NAME …]
    [--apart] [--json FILE]

`--apart` runs each probe in a process of its own, so that none inherits memory from another.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from benchmarks.checked import Run, checked
from benchmarks.processes import apart

MIB = 1 << 20


def allowed(run: Run) -> dict[str, int]:
    """The terms of the formula in bytes: the memory a run may take beyond weights and a forward."""
    from attncheck.model.subject import LEAST_MEMORY, MEMORY_SHARE

    of, most = (
        run.numbers,
        max(call.rows * (call.cached + call.new) for made in run.calls for call in made),
    )
    derived = any(call.gradient for made in run.calls for call in made)
    precise = any(call.dtype == "float64" for made in run.calls for call in made)
    return {
        "R": max(LEAST_MEMORY, int(MEMORY_SHARE * run.weights)),
        "L": max(5 * of["tokens"], 3 * most) * of["vocabulary"] * of["bytes"],
        "C": 2 * 2 * of["layers"] * of["kv_width"] * most * of["bytes"],
        "A": 14 * 8 * of["heads"] * of["tokens"] ** 2,
        "S": 32 * MIB,
        "P": 96 * of["modules"] * most,
        "D": min(8 * of["largest"], 32 * MIB) if precise else 0,
        "G": 8 * of["tokens"] * (30 * of["layers"] * of["width"] + 4 * of["vocabulary"])
        if derived
        else 0,
    }


def measured(
    model: str, dtype: str, probes: list[str], length: int | None, each_apart: bool
) -> Run:
    """One run of all probes, or one run each, put together."""
    if not each_apart:
        return apart(checked, model, dtype, probes, length)
    runs = [apart(checked, model, dtype, [name], length) for name in probes]
    whole = Run(runs[0].weights, runs[0].numbers)
    for run in runs:
        whole.calls += run.calls
        whole.peaks |= run.peaks
        whole.seconds |= run.seconds
        whole.verdicts |= run.verdicts
    return whole


def summary(run: Run) -> dict[str, Any]:
    """The numbers of a run as data: MiB, and shares of the weights in percent."""
    return {
        "weights_mib": run.weights / MIB,
        "tokens": run.numbers["tokens"],
        "beyond_mib": run.beyond / MIB,
        "share_percent": 100 * run.beyond / run.weights,
        "greediest": run.greediest,
        "allowed_mib": sum(allowed(run).values()) / MIB,
        "allowed": {term: size / MIB for term, size in allowed(run).items()},
        "probes": {name: peak / MIB for name, peak in run.peaks.items()},
    }


def main() -> None:
    from attncheck.core import registry

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--length", type=int)
    parser.add_argument("--probe", action="append")
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()
    probes = options.probe or registry.select()
    found = summary(measured(options.model, options.dtype, probes, options.length, options.apart))
    for name, mib in sorted(found["probes"].items(), key=lambda pair: -pair[1]):
        print(f"{name:18} {mib:8.1f} MiB  {100 * mib / found['weights_mib']:6.1f} % of the weights")
    total = f"{'all':18} {found['beyond_mib']:8.1f} MiB  {found['share_percent']:6.1f} %"
    terms = ", ".join(f"{term} {mib:.1f}" for term, mib in found["allowed"].items())
    print(f"{total}; the formula allows {found['allowed_mib']:.1f} MiB: {terms}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
