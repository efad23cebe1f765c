"""A run that is split over machines: which part of it this one does. Standard library only."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from attncheck.core.errors import UsageError

MOST = 100_000


@final
@dataclass(frozen=True, kw_only=True)
class Shard:
    """Part `index` of `count`, both from 1. `jobs` is how many jobs the whole run has, and `run`
    a digest of all of them, so that parts of other runs are told apart.
    """

    index: int
    count: int
    jobs: int = 0
    run: str = ""

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def names(self, names: Iterable[str]) -> frozenset[str]:
        """The names of this part: a range of all names in the order of their digests.

        Parts differ by one name at most. The order of the names does not matter, and one name more
        or less moves at most one name from each part to the next.
        """
        every = sorted(set(names), key=lambda name: (_digest(name), name))
        first, end = (len(every) * at // self.count for at in (self.index - 1, self.index))
        return frozenset(every[first:end])


def parsed(text: str) -> Shard:
    """The shard that I/N stands for.

    Raises:
        UsageError: no such text, or a part that there is not.
    """
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text.strip())
    index, count = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= index <= count <= MOST:
        raise UsageError(f"--shard {text}: expected I/N with I from 1 to N, such as 1/4")
    return Shard(index=index, count=count)


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
