"""What may run between two equal forwards: a batch, a training step, another dtype, an exception,
tokens that are rolled back.

Axes: B batch, T positions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from attncheck.probing import (
    ForwardSpec,
    Subject,
    Unsupported,
    cache_kinds,
    hooked,
    left_padded,
    pad_rows,
    rollback_cache,
    training_step,
)

Between = Callable[[Subject], None]
SHORT = 8
"""Tokens of a training step: autograd keeps what every layer computes."""


class Interrupted(Exception):
    """What a forward is interrupted by."""


def nothing(subject: Subject) -> None:
    """Nothing runs in between."""


def whole_row(subject: Subject) -> None:
    """The main row."""
    subject.passes.replay(ForwardSpec(subject.inputs.tokens))


def conversation(subject: Subject) -> None:
    """Another conversation: other tokens, with a cache where the model has one."""
    other, half = subject.inputs.fresh(subject.inputs.length, salt=17), subject.inputs.length // 2
    chunks = (half, subject.inputs.length - half) if subject.can.cache else ()
    subject.passes.replay(ForwardSpec((other,), chunks=chunks))


def batch(subject: Subject) -> None:
    """A batch of several rows, padded on the left where the model takes a 2D mask."""
    if subject.can.mask_2d:
        subject.passes.replay(left_padded(subject, pad_rows(subject)))
        return
    row, other = subject.inputs.row, subject.inputs.other(subject.inputs.row, salt=19)
    subject.passes.replay(ForwardSpec((row, other)))


def batch_and_conversation(subject: Subject) -> None:
    """A batch, whose padding a model may keep, and then another conversation."""
    batch(subject)
    conversation(subject)


def training(subject: Subject) -> None:
    """A forward in training mode with its backward pass; no weight changes."""
    training_step(subject, (subject.inputs.row[:SHORT],))


def other_dtype(subject: Subject) -> None:
    """A forward with the weights in another dtype, bfloat16 unless they are in it; they come back
    bit for bit.
    """
    low = "float32" if subject.dtype.itemsize < torch.float32.itemsize else "bfloat16"
    if not subject.loaded.casts(getattr(torch, low)):
        raise Unsupported(f"the weights cannot be cast to {low} and back")
    try:
        with subject.at(low) as there:
            there.passes.replay(ForwardSpec((subject.inputs.row[:SHORT],), use_cache=None))
    except Unsupported as reason:
        # it keeps modules in their own dtype: what it is asked in here is not its precision
        raise Unsupported(f"the model does not run in {low}: {reason}") from reason


def interruption(subject: Subject) -> None:
    """A forward that ends in an exception behind its last layer, or in its last part where that
    layer is not called as a module.
    """

    def raising(module: nn.Module, args: Any, output: Any) -> None:
        raise Interrupted

    for modules in (_last_layers(subject.model), [_last_called(subject.model, parts=True)]):
        with hooked(each.register_forward_hook(raising) for each in modules):
            try:
                subject.passes.replay(ForwardSpec(subject.inputs.tokens, use_cache=None))
            except Interrupted:
                return
    raise Unsupported("an exception behind the last layer does not leave the forward")


def rollback(subject: Subject) -> None:
    """Another conversation whose newest tokens are rolled back, on the model's own cache."""
    subject.can.steps.require()
    other, half = subject.inputs.fresh(subject.inputs.length, salt=29), subject.inputs.length // 2
    cache = rollback_cache(subject)
    with torch.no_grad():
        reply = subject.passes.call((other[:half],), cache=cache, use_cache=True)
        cache_kinds.crop(reply.cache, 2)


def _last_layers(model: nn.Module) -> list[nn.Module]:
    """The last layer of each list of layers: a forward over text alone runs only some of them. Of
    a layer that is a list or a dictionary, and so never called itself, its last part.
    """
    lists = [each for each in model.modules() if isinstance(each, nn.ModuleList) and len(each)]
    longest = max(map(len, lists), default=0)
    if longest:
        return [_last_called(each[-1]) for each in lists if 2 * len(each) >= longest]
    return [_last_called(model, parts=True)]


def _last_called(module: nn.Module, parts: bool = False) -> nn.Module:
    if not parts and type(module).forward is not nn.Module.forward:
        return module
    return next(each for each in reversed(list(module.modules())) if not list(each.children()))
