"""Measure `compare` over hand-written ports with one fault or two, and write docs/ports.md.

    python scripts/ports.py [--all] [--pairs N] [--seconds N]

Each fault is put into two families (`--all`: every family that can have it), in two styles of code and
two dtypes. What was measured is kept in build/ports.jsonl; a second start goes on.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from porting.fused import FusedPort  # noqa: E402
from porting.mistakes import BY_SWITCH, MISTAKES, flawed  # noqa: E402
from porting.recipe import Recipe, recipe_of  # noqa: E402
from porting.references import CONFIGS, reference  # noqa: E402
from porting.unfused import UnfusedPort  # noqa: E402

from attncheck.compare.naming import Explanation, explain  # noqa: E402
from attncheck.model.subject import Subject  # noqa: E402

STYLES = {"unfused": UnfusedPort, "fused": FusedPort}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
KEPT = ROOT / "build" / "ports.jsonl"
PAGE = ROOT / "docs" / "ports.md"
ROWS = tuple(
    tuple(row)
    for row in torch.randint(3, 96, (2, 26), generator=torch.Generator().manual_seed(1)).tolist()
)


@dataclass(frozen=True)
class Port:
    """One port to measure: no flaw is a correct one."""

    family: str
    style: str
    dtype: str
    flaws: tuple[str, ...]
    layer: int | None


def ports(every: bool, pairs: int) -> Iterator[Port]:
    """Correct ports, then single faults, then pairs."""
    cross = list(itertools.product(STYLES, DTYPES))
    for family in CONFIGS:
        yield from (Port(family, style, dtype, (), None) for style, dtype in cross)
    draw = random.Random(0)
    for mistake in draw.sample(MISTAKES, len(MISTAKES)):
        families = mistake.families if every else draw.sample(mistake.families, 1)
        for family, (style, dtype) in itertools.product(families, cross):
            layer = draw.choice((None, 0, 1, 2)) if mistake.layered else None
            yield Port(family, style, dtype, (mistake.switch,), layer)
    for _ in range(pairs):
        family = draw.choice(list(CONFIGS))
        able = [each for each in MISTAKES if family in each.families]
        first, second = draw.sample(able, 2)
        if first.names != second.names and first.part != second.part:
            style, dtype = draw.choice(cross)
            yield Port(family, style, dtype, (first.switch, second.switch), None)


def explained(port: Port) -> Explanation:
    """What `compare` says of a port."""
    model = reference(port.family).to(DTYPES[port.dtype])
    recipe: Recipe = recipe_of(reference(port.family))
    for flaw in port.flaws:
        recipe = flawed(recipe, flaw, port.layer)
    made = STYLES[port.style](recipe).to(DTYPES[port.dtype])
    return explain(Subject.of(model, port.family), Subject.of(made, "port"), ROWS)


def measured(port: Port) -> dict[str, object]:
    """The outcome of one port as plain data."""
    start = time.process_time()
    found = explained(port)
    return {
        **asdict(port),
        "names": [each.name for each in found.faults],
        "parts": [each.module for each in found.faults],
        "layers": [each.layer for each in found.faults],
        "sentences": [each.sentence for each in found.faults],
        "rounding": found.rounding,
        "residual": found.residual,
        "stuck": [found.layer, found.module],
        "seconds": round(time.process_time() - start, 2),
    }


def named(entry: dict[str, object]) -> bool:
    """Whether every flaw, and nothing else, was named."""
    names = set(entry["names"])  # type: ignore[call-overload]
    wanted = [set(BY_SWITCH[flaw].names) for flaw in entry["flaws"]]  # type: ignore[attr-defined]
    return all(names & each for each in wanted) and names <= set().union(*wanted)


def placed(entry: dict[str, object]) -> bool:
    """Whether the layer of a single fault is right."""
    layer = entry["layer"]
    found = entry["layers"] or [entry["stuck"][0]]  # type: ignore[index]
    part = BY_SWITCH[entry["flaws"][0]].part  # type: ignore[index]
    if part in ("embedding", "head") or "final" in entry["flaws"][0]:  # type: ignore[index]
        return found[0] is None  # type: ignore[index]
    return bool(found[0] == (layer or 0))  # type: ignore[index]


def page(entries: list[dict[str, object]]) -> str:
    """docs/ports.md."""
    single = [each for each in entries if len(each["flaws"]) == 1]  # type: ignore[arg-type]
    pairs = [each for each in entries if len(each["flaws"]) == 2]  # type: ignore[arg-type]
    healthy = [each for each in entries if not each["flaws"]]
    wrong = [each for each in single if each["names"] and not named(each)]
    lines = [
        "# Ports: what `compare` says of hand-written models with one fault",
        "",
        "Made by `python scripts/ports.py`. A port is written by hand around the weights of a tiny transformers",
        "model, in two styles of code (`tests/porting`); each fault is put into one layer or all of them.",
        "",
        f"- correct ports called different: {sum(not each['rounding'] for each in healthy)} of {len(healthy)}",
        f"- single faults named: {share(map(named, single))}; placed in the right layer: {share(map(placed, single))};"
        f" named wrongly: {len(wrong)}",
        f"- pairs of faults, both named and nothing else: {share(map(named, pairs))}",
        "",
        "| fault | named | placed | as | one sentence |",
        "|---|---|---|---|---|",
    ]
    for switch in sorted({each["flaws"][0] for each in single}):  # type: ignore[index]
        group = [each for each in single if each["flaws"][0] == switch]  # type: ignore[index]
        names = ", ".join(sorted({f"`{n}`" for each in group for n in each["names"]}))  # type: ignore[attr-defined]
        said = next((each["sentences"][0] for each in group if named(each)), "-")  # type: ignore[index]
        lines.append(
            f"| {switch} | {share(map(named, group))} | {share(map(placed, group))} | {names} | {said} |"
        )
    return "\n".join(lines) + "\n"


def share(answers: Iterator[bool]) -> str:
    """How many of how many."""
    listed = list(answers)
    return f"{sum(listed)} of {len(listed)}"


def main() -> None:
    """Measure what is missing, within the seconds given, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=1e9)
    options = parser.parse_args()
    KEPT.parent.mkdir(exist_ok=True)
    lines = KEPT.read_text().splitlines() if KEPT.exists() else []
    entries = [json.loads(line) for line in lines]
    done = {
        json.dumps([each[k] for k in ("family", "style", "dtype", "flaws", "layer")])
        for each in entries
    }
    start = time.time()
    for port in ports(options.all, options.pairs):
        key = json.dumps(list(asdict(port).values()))
        if key in done or time.time() - start > options.seconds:
            continue
        entries.append(json.loads(json.dumps(measured(port))))
        with KEPT.open("a") as file:
            file.write(json.dumps(entries[-1]) + "\n")
    PAGE.write_text(page(entries))


if __name__ == "__main__":
    main()
