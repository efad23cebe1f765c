"""One fault in words. Standard library only."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import final

WIDTH = 100


@final
@dataclass(frozen=True, kw_only=True)
class Entry:
    """What a fault is, how it looks from outside, where it comes from in practice, and what to
    change.
    """

    name: str
    what: str
    looks: str
    origin: str
    change: str

    def page(self) -> str:
        """The four paragraphs under their headings."""
        parts = (
            ("What it is", self.what),
            ("What it looks like from outside", self.looks),
            ("Where it comes from in practice", self.origin),
            ("What to change", self.change),
        )
        body = "\n\n".join(
            f"{title}\n{textwrap.indent(textwrap.fill(text, WIDTH), '    ')}"
            for title, text in parts
        )
        return f"{self.name}\n\n{body}\n"
