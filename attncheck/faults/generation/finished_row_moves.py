"""What it is
    Where a row of a batch has ended, the other rows go on with its keys.

How it looks
    Batches are right until their first row ends; then the rest of the batch writes something else
    than it does alone.

Where it comes from
    Rows that have ended are taken out of the batch, and the rows of the cache are not.

What to change
    Select the rows of cache, mask and positions by one index, or keep rows that have ended.

Axes: B batch, T new tokens.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from attncheck.faults.engine import Fault, Injected, injection
from attncheck.model.generation import generate_of
from attncheck.model.padding import pad_id
from attncheck.model.subject import Subject


def inject(subject: Subject) -> Injected:
    """In a step with a padding token in one row and none in another, each row gets the token of the
    row before it.

    Raises:
        Unsupported: the model has no generate(), or takes no step.
    """
    generate_of(subject)
    (subject.can.steps & subject.can.mask_2d).require()
    name, pad = subject.forward_adapter.ids_name, pad_id(subject)

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        ids_BT = call.get(name)
        if not isinstance(ids_BT, Tensor) or ids_BT.shape[1] != 1:
            return call
        ended_B = (ids_BT == pad)[:, 0]
        if not _continues(subject, call) or bool(ended_B.all() or not ended_B.any()):
            return call
        return {**call, name: ids_BT.roll(1, 0)}

    return injection.at_arguments(subject, edit)


def _continues(subject: Subject, call: dict[str, Any]) -> bool:
    """Whether a call gets a cache with tokens in it; one that does not count them has some."""
    cache = injection.cache_argument(subject, call)
    counts = hasattr(cache, "get_seq_length")
    return cache is not None and (not counts or bool(injection.tokens_before(subject, call)))


FAULT = Fault(name="finished-row-moves", inject=inject, on_cache_only=True)
