"""The results of all parts as one Markdown table, and its place between two marks of a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.growth import WORDS
from benchmarks.processes import Spread

HEAD = "| measured | attncheck | against | ratio |\n|---|---|---|---|"
START, END = "<!-- bench -->", "<!-- /bench -->"
SETS = ("five", "all")
WEIGHTY = 64
"""MiB of weights from which their share of memory is meaningful."""


def table(results: Mapping[str, Any]) -> str:
    """One row for each measurement; ratios are medians with the range of their repeats."""
    rows = [
        *_startup(results.get("startup", {})),
        *(
            row
            for each in results.get("overhead", ())
            for row in (*_overhead(each), *_memory(each))
        ),
        *(row for axis, found in results.get("growth", {}).items() for row in _growth(axis, found)),
        *_sweep(results.get("sweep", {})),
    ]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([f"{results['machine']}.", "", HEAD, *lines, ""])


def put(page: Path, text: str) -> bool:
    """Replace the text between the marks of a page; False if it has none."""
    before, start, rest = page.read_text(encoding="utf-8").partition(START)
    _, end, after = rest.partition(END)
    if not (start and end):
        return False
    page.write_text(f"{before}{START}\n{text.strip()}\n{END}{after}", encoding="utf-8")
    return True


def _ratio(value: Spread) -> str:
    repeated = value.high - value.low >= 0.005
    return (
        f"{value.middle:.2f} ({value.low:.2f} to {value.high:.2f})"
        if repeated
        else f"{value.middle:.2f}"
    )


def _seconds(value: float) -> str:
    return f"{value:.2g} s" if value < 10 else f"{value:.0f} s"


def _startup(found: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, each in found.items():
        for code, other in each["against"].items():
            against = f"`{code}`: {_seconds(other['seconds'].middle)}"
            yield (
                f"start: `attncheck {name}`",
                _seconds(each["seconds"].middle),
                against,
                _ratio(other["ratio"]),
            )


def _overhead(found: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for key in SETS:
        if key in found:
            each = found[key]
            against = (
                f"the same {each['forwards']} forwards: {_seconds(each['bare_seconds'].middle)}"
            )
            name = f"{each['probes']} probes with controls, {_named(found)}"
            yield name, _seconds(each["seconds"].middle), against, _ratio(each["ratio"])


def _memory(found: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    memory = found["memory"]
    if memory["weights_mib"] < WEIGHTY:
        return
    name = f"peak memory beyond weights and one forward, {_named(found)}"
    peak = f"{memory['beyond_mib']:.0f} MiB (`{memory['greediest']}`)"
    ours = f"{peak}; the formula allows {memory['allowed_mib']:.0f}"
    yield (
        name,
        ours,
        f"weights: {memory['weights_mib']:.0f} MiB",
        f"{memory['share_percent'] / 100:.2f}",
    )


def _named(found: Mapping[str, Any]) -> str:
    model = Path(str(found["model"])).name.partition(".")[0]
    return f"{model} in {found['dtype']}"


def _growth(axis: str, found: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    sizes = ", ".join(f"{size // 1024}k" if size >= 1024 else str(size) for size in found["sizes"])
    ratio = ", ".join(f"{value:.2f}" for value in found["ratios"])
    seconds, plain = (
        ", ".join(f"{value:.2g}" for value in found[name]) for name in ("seconds", "bare_seconds")
    )
    flagged = f" **{'; '.join(found['flags'])}**" if found["flags"] else ""
    ours = f"{seconds} s: exponent {found['exponent']:.2f}"
    yield (
        f"{WORDS[axis]}: {sizes}",
        ours,
        f"{plain} s: exponent {found['bare_exponent']:.2f}",
        ratio + flagged,
    )
    memory = ", ".join(f"{value:.0f}" for value in found["memory_mib"])
    limits = ", ".join(f"{value:.0f}" for value in found["allowed_mib"])
    yield (
        f"peak memory beyond weights and one forward, {WORDS[axis]} as above",
        f"{memory} MiB",
        f"allowed {limits} MiB",
        f"exponent {found['memory_exponent']:.2f}",
    )


def _sweep(found: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    if not found:
        return
    name = f"sweep, {found['types']} of {found['of']} config types, {found['jobs']} processes"
    target, seconds = found["slowest"]
    slowest = f"slowest `{target}`: {_seconds(seconds)}"
    yield (
        name,
        f"{found['minutes']:.1f} minutes",
        slowest,
        f"all: {found['minutes_for_all']:.0f} minutes",
    )
