"""The parts that a random fault is composed of, and their form as text.

`what=keys,how=slot:1,at=model.layers.1.self_attn,heads=0,tokens=4-7,when=step` reads: in single
steps, the keys of tokens 4 to 7 in head 0 of that layer are those of the token before.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, final

from attncheck.core.errors import UsageError

EVERY = "all"
WHATS = (
    "queries",
    "keys",
    "values",
    "keys+values",
    "cells",
    "output",
    "stored-keys",
    "stored-values",
    "stored-keys+values",
    "states",
    "hidden",
    "logits",
    "positions",
)
"""What is changed: what the kernel gets (queries, keys, values, cells: which keys each query may
read), what it returns (output), what a cache holds between two calls (stored-..., states), what a
module returns (hidden), the logits, the positions that a call gets.
"""
CHANGES = (
    "slot",
    "head",
    "row",
    "layer",
    "angle",
    "base",
    "round",
    "scale",
    "zero",
    "leak",
    "spill",
)
"""How states are changed: replaced by those of another slot, head, batch row or layer; rotated by
an angle of n positions, or as with a base n times as large; rounded to n bits; scaled; zeroed;
with n times those of the next token (leak) or of the next batch row (spill) added.
"""
CELLS = ("ahead", "short", "window", "hide", "top-left", "past", "not-self")
"""How cells are changed: n keys ahead are visible; the newest n are hidden; only the newest n are
visible; key n is hidden; keys are counted from the first of the buffer; all of the past is visible,
padding and what lies outside a window included; a query does not read its own key.
"""
PLACINGS = ("offset", "restart", "frozen")
"""How positions are changed: moved by n, counted from 0 in each call, all that of the first new."""
WHENS = (
    "always",
    "first",
    "uncached",
    "cached",
    "step",
    "chunk",
    "batch",
    "padded",
    "static",
)
"""In which calls: every one; nothing cached yet; without a cache; on a filled cache, there in
single tokens or in several; with several rows; with padding; with a buffer of fixed length.
"""


@final
@dataclass(frozen=True, kw_only=True)
class RandomFault:
    """One composed fault. `how` is a name, with a number where it has one (`slot:1`); `at` is the
    name of a module; `heads` and `rows` are numbers; `tokens` is `4-7` or `9-`, by position.
    """

    what: str
    how: str
    at: str = EVERY
    heads: str = EVERY
    rows: str = EVERY
    tokens: str = EVERY
    when: str = "always"

    def __str__(self) -> str:
        given = asdict(self).items()
        defaults = {each.name: each.default for each in fields(self)}
        return ",".join(f"{name}={value}" for name, value in given if value != defaults[name])

    @property
    def kind(self) -> str:
        """The name of the change without its number."""
        return self.how.partition(":")[0]

    @property
    def number(self) -> float:
        """The number of the change; 0 where it has none."""
        return float(self.how.partition(":")[2] or 0)

    @property
    def span(self) -> tuple[int, int | None]:
        """The first token and the last one, None for no end."""
        if self.tokens == EVERY:
            return 0, None
        first, _, last = self.tokens.partition("-")
        return int(first), int(last) if last else None

    def as_dict(self) -> dict[str, Any]:
        """The parts by name."""
        return asdict(self)


def parse(text: str) -> RandomFault:
    """The fault that a text describes.

    Raises:
        UsageError: it describes none.
    """
    pairs = dict(part.partition("=")[::2] for part in text.split(","))
    known = {each.name for each in fields(RandomFault)}
    if set(pairs) - known or not {"what", "how"} <= set(pairs):
        raise UsageError(f"`{text}` is no fault: expected some of {', '.join(sorted(known))}")
    fault = RandomFault(**pairs)
    kinds = CELLS if fault.what == "cells" else PLACINGS if fault.what == "positions" else CHANGES
    for value, valid in ((fault.what, WHATS), (fault.when, WHENS), (fault.kind, kinds)):
        if value not in valid:
            raise UsageError(f"`{value}` in `{text}`: expected one of {', '.join(valid)}")
    return fault
