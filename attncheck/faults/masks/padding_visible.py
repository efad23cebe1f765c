"""What it is
    Real tokens read the keys of padding.

How it looks
    A prompt answers differently in a padded batch than alone; changing the tokens under the padding
    changes the logits.

Where it comes from
    The 2D mask is dropped when a cache is present, when a chunk of a prefill is cut, in
    cross-attention, or in a convolution beside attention.

What to change
    Combine the 2D mask with the causal one in every call, cut to the keys that the call really
    sees.

Axes: B batch, T query positions, S key positions.
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
    View,
    WrongForward,
    injection,
    masks,
)
from attncheck.model.forward_spec import all_ones
from attncheck.model.subject import Subject


def inject(subject: Subject) -> Injected:
    """Turn the zeros of every 2D mask into ones."""
    subject.can.mask_2d.require(CannotInject)
    name = str(subject.forward_adapter.mask_name)

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        mask_BS = call.get(name)
        if not isinstance(mask_BS, Tensor) or mask_BS.ndim != 2:
            return call
        return {**call, name: torch.ones_like(mask_BS)}

    return injection.at_arguments(subject, edit)


def _hypotheses(forward: WrongForward) -> Iterator[Hypothesis]:
    if not forward.padded:
        return
    if not forward.attends:
        yield Hypothesis(change=lambda spec: Change(mask_2d=all_ones(spec.tokens)))
        return
    yield Hypothesis("", Change(allowed=masks.without_mask))
    if forward.chunked:
        yield Hypothesis("from the second call on", Change(allowed=_without_mask_later))
    yield Hypothesis(
        "counted as text",
        change=lambda spec: Change(allowed=masks.without_mask, mask_2d=all_ones(spec.tokens)),
    )


def _without_mask_later(allowed: Tensor, view: View) -> Tensor:
    return masks.without_mask(allowed, view) if view.start else allowed


FAULT = Fault(
    name="padding-visible",
    inject=inject,
    hypotheses={370: _hypotheses},
    looks_like=("attention-mask-ignored",),
)
