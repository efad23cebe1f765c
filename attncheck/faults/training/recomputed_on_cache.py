"""What it is
    With gradient checkpointing the cache stays on, and the second computation of a layer reads the
    keys of the first, which carry no gradient.

How it looks
    The loss is right and nothing is raised; gradients are too small, with reentrant checkpoints
    only.

Where it comes from
    `use_cache` left at its default in a training loop, and a layer that appends to the cache once
    more when it is computed again.

What to change
    Switch the cache off where checkpointing is on and the model is in training mode.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attncheck.attention.call import AttentionCall
from attncheck.faults.engine import Fault, Injected, injection
from attncheck.model.subject import Subject
from attncheck.model.training import training

FLAG = "gradient_checkpointing"


def inject(subject: Subject) -> Injected:
    """Read the keys of a checkpoint's first pass in its second.

    Raises:
        Unsupported: the model takes no gradient checkpointing.
    """
    with training(subject, checkpointing=True):
        pass
    first: dict[int, list[Tensor]] = {}

    def handler(call: AttentionCall) -> Any:
        saving = any(getattr(each, FLAG, False) for each in subject.model.modules())
        if not saving or not subject.model.training:
            first.clear()
        elif not torch.is_grad_enabled():
            first.setdefault(id(call.module), []).append(call.key_BGSD.detach())
        elif first.get(id(call.module)):
            call.key_BGSD = first[id(call.module)].pop()
        return call.run()

    return injection.at_kernel(subject, handler)


FAULT = Fault(name="recomputed-on-cache", inject=inject)
