"""The rotary tables that a model uses after calls of other lengths."""

from __future__ import annotations

import torch

from attncheck.attention.rope import CosSin, Tables, recorded_tables
from attncheck.core.finding import BEYOND_ROUNDING
from attncheck.faults.engine.trusted import Trusted
from attncheck.numerics.divergence import beyond

SHORT = 2


def tables_of(trusted: Trusted, *rows: tuple[int, ...]) -> Tables:
    """The tables of the last of several forwards, run in this order after a short one."""
    passes = trusted.subject.passes
    found: Tables = {}
    with torch.no_grad():
        # A short call resets tables that a model keeps from its longest call so far.
        passes.call((trusted.subject.inputs.row[:SHORT],), use_cache=False)
        for row in rows:
            with recorded_tables(trusted.subject.model) as found:
                passes.call((row,), use_cache=False)
    return found


def depend_on_length(trusted: Trusted) -> bool:
    """Whether the table of the same positions differs between a short call and a whole one."""
    row = trusted.subject.inputs.row
    shorter, whole = tables_of(trusted, row[: len(row) // 3]), tables_of(trusted, row)
    return any(
        not _same(one, other)
        for name in shorter
        for one, other in zip(shorter[name], whole.get(name, []), strict=False)
    )


def _same(shorter: CosSin, longer: CosSin) -> bool:
    length = shorter[0].shape[-2]
    rounding = torch.finfo(shorter[0].dtype).eps
    return not any(
        beyond(one, other[..., :length, :], BEYOND_ROUNDING * rounding)
        for one, other in zip(shorter, longer, strict=True)
    )
