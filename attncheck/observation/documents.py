"""The documents of a packed row, and the changed cells of documents that begin at other tokens."""

from __future__ import annotations

import bisect

from attncheck.model.forward_spec import Positions
from attncheck.observation.summary import Extent

CellSet = frozenset[tuple[int, int]]
"""(query, token) pairs."""
SHIFTS = (1, -1, 2, -2)
"""By so many tokens documents may begin late (or early)."""


def documents_of(positions: Positions | None) -> tuple[int, ...]:
    """The first token of each document where the positions of all rows restart at the same tokens;
    empty where none restart.
    """
    if not positions or len(set(positions)) > 1:
        return ()
    row = positions[0]
    starts = [at for at in range(1, len(row)) if row[at] != row[at - 1] + 1]
    return (0, *starts) if starts else ()


def shifted_documents(cells: CellSet, how: str, extent: Extent) -> int:
    """By how many tokens documents begin late (negative: early) where that alone gives the cells,
    0 where it does not: all of the cells that cannot be read, or some at each boundary of those
    that can, since a causal mask by positions leaves out others than one by tokens.
    """
    starts = extent.documents
    for shift in SHIFTS if starts and how in ("hidden", "visible") else ():
        moved = (0, *(start + shift for start in starts[1:]))
        lost, gained = _changed(starts, moved, extent.length)
        if how == "hidden" and cells == lost:
            return shift
        tokens = {token for cell in cells for token in cell}
        if how == "visible" and cells <= gained and all(_near(tokens, each) for each in moved[1:]):
            return shift
    return 0


def _near(tokens: set[int], start: int) -> bool:
    return start in tokens or start - 1 in tokens


def _changed(
    starts: tuple[int, ...], moved: tuple[int, ...], length: int
) -> tuple[CellSet, CellSet]:
    """The cells that no query reads any more, up to its own token, and those that some may read."""
    lost, gained = set(), set()
    for query in range(length):
        for key in range(length):
            together = _document(query, starts) == _document(key, starts)
            after = _document(query, moved) == _document(key, moved)
            if together and not after and key <= query:
                lost.add((query, key))
            elif after and not together:
                gained.add((query, key))
    return frozenset(lost), frozenset(gained)


def _document(token: int, starts: tuple[int, ...]) -> int:
    return bisect.bisect_right(starts, token)
