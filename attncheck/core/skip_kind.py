"""One kind of reason for which a question is skipped."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True)
class SkipKind:
    """A kind of reason: its name, what its sentences say (patterns), and what it means."""

    name: str
    words: tuple[str, ...]
    means: str

    def says(self, reason: str) -> bool:
        """Whether a sentence is of this kind."""
        return any(re.search(words, reason) for words in self.words)
