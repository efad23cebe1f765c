"""What it is
    The mask of the first row's encoder input is used for every row.

How it looks
    In a batch of inputs of unequal lengths the shorter ones read their padding, or the longer ones
    lose their end; one input alone is right.

Where it comes from
    `mask[:1]` or a broadcast that takes the batch for one row when the encoder's states are
    expanded.

What to change
    Expand the encoder's mask with its states, row by row.

Axes: B batch, S encoder positions.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from attncheck.core.errors import CannotInject
from attncheck.faults.engine import Fault, Injected, injection
from attncheck.model.subject import Subject

NAME = "attention_mask"


def inject(subject: Subject) -> Injected:
    """Give every row of the encoder the mask of the first one.

    Raises:
        CannotInject: the model has no encoder that reads ids.
    """
    if not isinstance(subject.forward_adapter.fixed.get("input_ids"), Tensor):
        raise CannotInject("the model has no encoder that reads ids")

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        mask_BS = call.get(NAME)
        if not isinstance(mask_BS, Tensor) or mask_BS.ndim != 2:
            return call
        return {**call, NAME: mask_BS[:1].expand(mask_BS.shape).contiguous()}

    return injection.at_arguments(subject, edit)


FAULT = Fault(name="encoder-mask-of-first-row", inject=inject)
