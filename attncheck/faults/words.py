"""Every fault in words: what `attncheck explain FAULT` prints and a diagnosis advises. Standard
library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from attncheck.core.errors import UsageError, unknown
from attncheck.faults import words_heads, words_masks, words_positions, words_state
from attncheck.faults.entry import Entry

ENTRIES: tuple[Entry, ...] = (
    *words_masks.ENTRIES,
    *words_positions.ENTRIES,
    *words_state.ENTRIES,
    *words_heads.ENTRIES,
)
BY_NAME: dict[str, Entry] = {entry.name: entry for entry in ENTRIES}
NAMES: tuple[str, ...] = tuple(BY_NAME)


@final
@dataclass(frozen=True)
class Group:
    """One family of faults with the names that belong to it."""

    title: str
    names: tuple[str, ...]


GROUPS = (
    Group("masks", tuple(entry.name for entry in words_masks.ENTRIES)),
    Group("positions", tuple(entry.name for entry in words_positions.ENTRIES)),
    Group("cache", tuple(entry.name for entry in words_state.ENTRIES)),
    Group(
        "heads, scores, training and generation", tuple(entry.name for entry in words_heads.ENTRIES)
    ),
)


def documentation(name: str) -> str:
    """The page of one fault.

    Raises:
        UsageError: no fault has this name; the nearest one is offered.
    """
    if name not in BY_NAME:
        raise UsageError(unknown("fault", name, NAMES))
    return BY_NAME[name].page()


def advice(name: str) -> str:
    """What to change, in a sentence or two; empty for a name that is no fault of the catalogue (a
    repair).
    """
    return BY_NAME[name].change if name in BY_NAME else ""
