"""What it is
    A step takes the number of real tokens of a row for the number of its filled slots: padding
    behind the prompt is read, and the newest tokens are not.

How it looks
    Rows that were padded on the right go wrong from the first step on; padding on the left and the
    prompt itself are right.

Where it comes from
    `mask.sum(-1)` as a length, which holds as long as the real tokens lie next to each other.

What to change
    Hide slots by the mask itself, wherever its zeros are.

Axes: B batch, T new tokens, S mask columns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attncheck.faults.engine import Fault, Injected, injection
from attncheck.model.subject import Subject


def inject(subject: Subject) -> Injected:
    """In a step, a mask whose rows begin with a real token hides the last slots instead of those
    that it names.
    """
    (subject.can.mask_2d & subject.can.steps).require()
    name = str(subject.forward_adapter.mask_name)

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        mask_BS, ids_BT = call.get(name), call.get(subject.forward_adapter.ids_name)
        step = isinstance(ids_BT, Tensor) and ids_BT.shape[1] == 1
        if not step or not isinstance(mask_BS, Tensor) or mask_BS.ndim != 2:
            return call
        if not injection.tokens_before(subject, call) or not bool(mask_BS[:, 0].all()):
            return call
        slots_S = torch.arange(mask_BS.shape[1], device=mask_BS.device)
        return {**call, name: (slots_S < mask_BS.sum(-1, keepdim=True)).to(mask_BS.dtype)}

    return injection.at_arguments(subject, edit)


FAULT = Fault(name="right-padding-visible", inject=inject, on_cache_only=True)
