"""One thing that differs between a failing call and the trusted path: the unit that is collected,
grouped and put into words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from attncheck.core.observed_part import How, What


@final
@dataclass(frozen=True, kw_only=True)
class Deviation:
    """One changed vector, cell or number in one call.

    `module` names the module where it is not the attention kernel, and `entering` says that what
    enters it differs. `at` is the token of a slot or
    the position of a query, `key` the token that a cell reads; `source` is
    (sequence, head, token) where a vector comes from another place. -1 means all.
    `base` is that of a rotation with another one; `channels` are those in which an unexplained,
    zeroed or scaled vector differs, where it equals the right one in others. `start` and `when` say
    which call it was; `heads` counts the heads that there are.
    """

    what: What
    how: How
    layer: int
    module: str = ""
    row: int = -1
    head: int = -1
    heads: int = 0
    at: int = -1
    key: int = -1
    start: int = 0
    when: str = ""
    amount: float | None = None
    dtype: str = ""
    source: tuple[int, int, int] | None = None
    opaque: bool = False
    base: float | None = None
    channels: tuple[int, ...] = ()
    entering: bool = False
