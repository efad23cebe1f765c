"""A comparison on a terminal: the verdict, the first module, and the difference by position."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from attncheck.compare import weights
from attncheck.compare.divergence import ForwardComparison
from attncheck.compare.sides import TwoSides
from attncheck.report.numbers import number

STYLES = {
    "identical": "bold green",
    "rounding": "bold cyan",
    "undecided": "bold yellow",
    "different": "bold red",
}
ENDS = {
    "rounding": "the two sides are the same up to rounding",
    "undecided": "this precision is too coarse to tell rounding from a fault: compare in "
    "dtype=float64",
    "different": "the two sides compute something else",
}
BARS = " ▁▂▃▄▅▆▇█"
WIDTH = 72
MOST_LINES = 24


def print_page(sides: TwoSides, console: Console) -> None:
    """The verdict and everything behind it."""
    line = Text(overflow="fold").append(sides.verdict.upper(), style=STYLES[sides.verdict])
    console.print(line.append(f"  {verdict_words(sides)}"))
    console.print(Text(f"left  {sides.comparison.left}", style="dim"))
    console.print(Text(f"right {sides.comparison.right}", style="dim"))
    console.print()
    for sentence in sentences(sides):
        console.print(Text(sentence, overflow="fold"))
    if sides.alignment:
        console.print(Padding(_alignment(sides), (1, 0, 1, 2)))
    blocks = [Text(words, overflow="fold") for words in notes(sides)]
    blocks += [_block(each) for each in sides.comparison.forwards]
    for block in blocks:
        console.print(Padding(block, (0, 0, 1, 2)))


def _alignment(sides: TwoSides) -> Table:
    """Which module of the other side holds each value of the reference."""
    swapped = sides.explanation is not None and sides.explanation.swapped
    side, other = ("right", "left") if swapped else ("left", "right")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(f"value of the {side} side", overflow="fold")
    table.add_column(f"module of the {other} side", overflow="fold")
    for value, module in sides.alignment:
        table.add_row(Text(value), Text(module))
    return table


def sentences(sides: TwoSides) -> Iterator[str]:
    """What was named and proven, or why nothing was; and what a verdict of sameness rests on."""
    found = sides.explanation
    if sides.verdict == "different" and found is not None:
        if found.swapped and not found.unreadable:
            yield "The right side is the reference."
        yield from (f"{each.sentence}." for each in found.faults)
        if found.reason:
            yield f"Not named: {found.reason}."
        elif found.rounding:
            yield "One forward is the same up to rounding: the difference is in how it is called."
    if sides.verdict in ("identical", "rounding"):
        ways = [each.way for each in sides.comparison.forwards]
        if sides.further is not None:
            ways += [each.call.name for each in sides.further.calls if each.held != "skipped"]
        yield f"Compared over {len(ways)} calls: {', '.join(ways)}."
        if sides.control is not None:
            seen = "is seen" if sides.control.detected else "is NOT seen: the answer is vacuous"
            yield f"Control: {sides.control.fault} injected into one side {seen}."


def verdict_words(sides: TwoSides) -> str:
    """The verdict in a sentence."""
    worst = sides.comparison.worst
    if worst is None:
        return "the two sides have no call pattern in common"
    if sides.verdict == "identical":
        return "every logit is the same to the last bit"
    amount = (
        f"logits differ by {number(worst.max_abs)} ({worst.way}), "
        f"rounding explains {number(worst.budget)}"
    )
    if sides.raised is not None and sides.raised.worst is not None:
        finer, dtype = sides.raised.worst, sides.raised.left.dtype
        amount += (
            f"; in {dtype} by {number(finer.max_abs)}, where it explains {number(finer.budget)}"
        )
    return f"{amount}: {ENDS[sides.verdict]}"


def notes(sides: TwoSides) -> Iterator[str]:
    """What explains a difference: weights first, since everything after them differs as well."""
    comparison = sides.comparison
    missing, differing = comparison.missing, comparison.weights
    total = len(comparison.left.weights)
    yield from (f"{line}." for line in sides.state[:MOST_LINES])
    if len(sides.state) > MOST_LINES:
        yield f"{len(sides.state) - MOST_LINES} more weights differ between the files."
    if missing:
        yield f"Weights on one side only: {', '.join(missing[:4])} ({len(missing)} in all)."
    if sides.how:
        yield f"{weights.summary(sides.how, total)}."
    elif differing:
        yield f"{len(differing)} of {total} weights differ, the first {differing[0]}."
    elif comparison.forwards and not missing and sides.verdict == "different":
        yield f"All {total} weights are the same: the code or the settings differ."
    worst = (sides.raised or comparison).worst
    if worst is not None and worst.first is not None and sides.verdict == "different":
        first = worst.first
        inside = "" if first.home == first.event[0] else f" (what it passes to {first.event[0]})"
        yield (
            f"First diverging module: {first.home}{inside} from position {first.position} on, by "
            f"{number(first.max_abs_diff)}."
        )


def _block(found: ForwardComparison) -> Text:
    text = Text(overflow="fold").append(found.way, style="bold").append(": ")
    text.append(found.verdict, style=STYLES[found.verdict])
    for line in _lines(found) if found.verdict != "identical" else ():
        text.append(f"\n{line}")
    return text


def _lines(found: ForwardComparison) -> Iterator[str]:
    lost = f", {found.nonfinite} not finite" if found.nonfinite else ""
    start = f", from position {found.first_position} on" if found.first_position is not None else ""
    amount = f"max|Δ| {number(found.max_abs)}{lost}{start}"
    yield f"{amount}; rounding explains {number(found.budget)}"
    agreement = ", ".join(f"top-{k} {share:.0%}" for k, share in found.top)
    flips = f"{found.flips} of {found.positions} positions"
    yield f"best token differs at {flips}; shared: {agreement}"
    yield "KL " + ", ".join(f"{share:.0%} below {number(value)}" for share, value in found.kl)
    if found.by_position and found.first_position is not None:
        yield f"by position |{_bars(found)}|"


def _bars(found: ForwardComparison) -> str:
    """One bar per position, its height the decade above the budget; blank within it."""
    by_position = found.by_position
    stride = -(-len(by_position) // WIDTH)
    starts = range(0, len(by_position), stride)
    low = max(found.budget, 1e-300)
    span = max(1.0, math.log10(max(found.max_abs, low) / low))

    def height(value: float) -> int:
        return 0 if value <= low else 1 + round(7 * min(1.0, math.log10(value / low) / span))

    return "".join(BARS[height(max(by_position[at : at + stride]))] for at in starts)
