"""A comparison on a terminal: the verdict, where it starts, and how far apart the two sides are by
position.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text

from attncheck.compare import weights
from attncheck.compare.divergence import ForwardComparison
from attncheck.compare.record import described
from attncheck.compare.sides import TwoSides
from attncheck.report.numbers import number

STYLES = {
    "identical": "bold green",
    "rounding": "bold cyan",
    "undecided": "bold yellow",
    "different": "bold red",
}
BARS = " ▁▂▃▄▅▆▇█"
WIDTH = 72


def print_page(sides: TwoSides, console: Console) -> None:
    """The whole page."""
    for block in _blocks(sides):
        console.print(block)


def verdict_words(sides: TwoSides) -> str:
    """The verdict in a sentence."""
    worst = sides.comparison.worst
    if worst is None:
        return "the two sides have no way of asking in common"
    if sides.verdict == "identical":
        return "every logit is the same to the last bit"
    amount = f"logits differ by {number(worst.max_abs)} ({worst.way}), rounding explains {number(worst.budget)}"
    if sides.raised is not None and sides.raised.worst is not None:
        finer = sides.raised.worst
        amount += f"; in {sides.raised.left.dtype} by {number(finer.max_abs)}, where it explains {number(finer.budget)}"
    ends = {
        "rounding": "the two sides are the same up to rounding",
        "undecided": "this precision is too coarse to tell rounding from a fault: compare in dtype=float64",
        "different": "the two sides compute something else",
    }
    return f"{amount}: {ends[sides.verdict]}"


def _blocks(sides: TwoSides) -> Iterator[RenderableType]:
    line = Text(overflow="fold").append(sides.verdict.upper(), style=STYLES[sides.verdict])
    yield line.append(f"  {verdict_words(sides)}")
    yield Text(f"left  {described(sides.comparison.left)}", style="dim")
    yield Text(f"right {described(sides.comparison.right)}", style="dim")
    yield Text()
    for words in notes(sides):
        yield Padding(Text(words, overflow="fold"), (0, 0, 1, 2))
    for way in sides.comparison.ways:
        yield Padding(_way(way), (0, 0, 1, 2))


def notes(sides: TwoSides) -> Iterator[str]:
    """What explains a difference: weights first, since everything after them differs as well; then
    the first module.
    """
    comparison = sides.comparison
    if comparison.missing:
        yield f"Weights on one side only: {', '.join(comparison.missing[:4])} ({len(comparison.missing)} in all)."
    if sides.how:
        yield f"{weights.summary(sides.how, comparison.left.weights)}."
    elif comparison.weights:
        yield f"{len(comparison.weights)} of {len(comparison.left.weights)} weights differ, the first {comparison.weights[0]}."
    elif comparison.ways and not comparison.missing and sides.verdict == "different":
        yield f"All {len(comparison.left.weights)} weights are the same: the code or the settings differ."
    deciding = sides.raised or comparison
    first = deciding.worst.first if deciding.worst else None
    if first is not None and sides.verdict == "different":
        inside = "" if first.home == first.event[0] else f" (what it passes to {first.event[0]})"
        yield f"First diverging module: {first.home}{inside} from position {first.position} on, by {number(first.max_abs_diff)}."


def _way(way: ForwardComparison) -> Text:
    text = (
        Text(overflow="fold")
        .append(way.way, style="bold")
        .append(": ")
        .append(way.verdict, style=STYLES[way.verdict])
    )
    for line in lines_of(way):
        text.append(f"\n{line}")
    return text


def lines_of(way: ForwardComparison) -> Iterator[str]:
    """One way of asking in words and one picture."""
    if way.verdict == "identical":
        return
    lost = f", {way.nonfinite} not finite" if way.nonfinite else ""
    start = f", from position {way.first_position} on" if way.first_position is not None else ""
    yield f"max|Δ| {number(way.max_abs)}{lost}{start}; rounding explains {number(way.budget)}"
    agreement = ", ".join(f"top-{k} {share:.0%}" for k, share in way.top)
    yield f"best token differs at {way.flips} of {way.positions} positions; shared: {agreement}"
    yield "KL " + ", ".join(f"{share:.0%} below {number(value)}" for share, value in way.kl)
    if way.by_position and way.first_position is not None:
        yield f"by position |{_bars(way)}|"


def _bars(way: ForwardComparison) -> str:
    """One block a position, its height the decade of the difference above rounding; blank where
    rounding explains it.
    """
    stride = -(-len(way.by_position) // WIDTH)
    values = [
        max(way.by_position[at : at + stride]) for at in range(0, len(way.by_position), stride)
    ]
    low = max(way.budget, 1e-300)
    span = max(1.0, math.log10(max(way.max_abs, low) / low))
    heights = [
        0 if value <= low else 1 + round(7 * min(1.0, math.log10(value / low) / span))
        for value in values
    ]
    return "".join(BARS[height] for height in heights)
