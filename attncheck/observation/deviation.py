"""One thing that differs between a failing call and the trusted path: the unit that is collected,
grouped and put into words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from attncheck.core.finding import How, What


@final
@dataclass(frozen=True, kw_only=True)
class Deviation:
    """One changed vector, cell or number in one call.

    `at` is the token of a slot or the position of a query, `key` the token that a cell reads;
    `source` is (sequence, head, token) where a vector comes from another place. -1 means all.
    `module` is the one that returns hidden states or logits.
    `start` and `when` say which call it was; `heads` counts the heads that there are.
    """

    what: What
    how: How
    layer: int
    row: int = -1
    head: int = -1
    heads: int = 0
    at: int = -1
    key: int = -1
    start: int = 0
    when: str = ""
    amount: float | None = None
    dtype: str = ""
    module: str = ""
    source: tuple[int, int, int] | None = None
    opaque: bool = False
