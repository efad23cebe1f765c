"""What it is
    Padding among the new tokens of a call is read where a cache is filled already.

How it looks
    The second turn of a padded batch is wrong for the shorter texts; the first turn is right.

Where it comes from
    A mask for new tokens that is made of ones, since only the cached part is thought to hold
    padding.

What to change
    Take the whole 2D mask, cached and new, as the caller passes it.

Axes: B batch, T new tokens, S mask columns.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from attncheck.faults.engine import Fault, Injected, injection
from attncheck.model.subject import Subject


def inject(subject: Subject) -> Injected:
    """On a filled cache, the last T columns of the 2D mask become ones."""
    (subject.can.mask_2d & subject.can.cache).require()
    name = str(subject.forward_adapter.mask_name)

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        mask_BS, ids_BT = call.get(name), call.get(subject.forward_adapter.ids_name)
        if not isinstance(mask_BS, Tensor) or mask_BS.ndim != 2 or not isinstance(ids_BT, Tensor):
            return call
        if not injection.tokens_before(subject, call):
            return call
        seen_BS = mask_BS.clone()
        seen_BS[:, -ids_BT.shape[1] :] = 1
        return {**call, name: seen_BS}

    return injection.at_arguments(subject, edit)


FAULT = Fault(name="new-padding-visible", inject=inject, on_cache_only=True)
