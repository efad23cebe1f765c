"""What it is
    In a packed row a document reads the one before it.

How it looks
    The logits of the second document change with the first one; fine-tuning with packing is worse
    than without.

Where it comes from
    Position ids that restart do not reach the mask builder; recognition of packed rows that works
    only without a mask and without a cache; a collator that passes a 2D mask of ones.

What to change
    Pass a block-diagonal 4D mask, or the sequence lengths that the kernel asks for, together with
    positions that restart; switch the cache off in training.

Axes: T query positions, S key positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from attncheck.core.errors import CannotInject
from attncheck.faults.engine import (
    Change,
    Fault,
    Hypothesis,
    Injected,
    WrongForward,
    injection,
    masks,
)
from attncheck.model.subject import Subject


def inject(subject: Subject) -> Injected:
    """Replace every 4D mask by a plain causal one."""
    subject.can.mask_4d.require(CannotInject)
    name = str(subject.forward_adapter.mask_name)

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        mask = call.get(name)
        if not isinstance(mask, Tensor) or mask.ndim != 4:
            return call
        new, total = mask.shape[-2:]
        causal_TS = torch.ones(new, total, dtype=torch.bool, device=mask.device).tril(total - new)
        return {**call, name: torch.zeros_like(mask).masked_fill(~causal_TS, float(mask.min()))}

    return injection.at_arguments(subject, edit)


def _hypotheses(forward: WrongForward) -> Iterator[Hypothesis]:
    if forward.trusted.segmented(forward.spec):
        change = Change(allowed=masks.without_documents)
        yield Hypothesis(change=change, holds=lambda trusted: not masks.masks_ignored(trusted))


FAULT = Fault(name="document-leak", inject=inject, hypotheses={380: _hypotheses})
