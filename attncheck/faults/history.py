"""Faults that remember what ran before.

Axes: B batch, T positions of this call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from attncheck.core.errors import CannotInject
from attncheck.faults.engine.inject import at_arguments, tokens_before
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.subject import Subject
from attncheck.numerics.divergence import beyond

FREQUENCIES = "inv_freq"
STRETCH = 0.5


@contextlib.contextmanager
def rope_scale_switch(subject: Subject) -> Iterator[None]:
    """Rotary frequencies change once a call goes beyond half of the input, and stay so until a call
    of a quarter or less.
    """
    tables = {
        name: value
        for name, value in subject.model.named_buffers()
        if name.rpartition(".")[2] == FREQUENCIES
    }
    if not tables:
        raise CannotInject("no rotary frequencies are kept in a buffer")
    saved = {name: value.clone() for name, value in tables.items()}
    boundary = subject.inputs.length // 2

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        ids_BT = call.get(subject.forward_adapter.ids_name)
        if isinstance(ids_BT, Tensor):
            reached = tokens_before(subject, call) + ids_BT.shape[1]
            if reached > boundary or reached <= boundary // 2:
                _write(tables, saved, STRETCH if reached > boundary else 1.0)
        return call

    healthy_BTV = subject.logits(ForwardSpec(subject.inputs.tokens))
    try:
        with at_arguments(subject, edit):
            with torch.no_grad():
                changed_BTV = subject.passes.call(subject.inputs.tokens, use_cache=False).logits_BTV
            if not beyond(changed_BTV, healthy_BTV, subject.budget.value):
                raise CannotInject(
                    "the rotary frequencies in the buffers are not what the model uses"
                )
            yield
    finally:
        _write(tables, saved, 1.0)


def _write(tables: dict[str, Tensor], saved: dict[str, Tensor], factor: float) -> None:
    with torch.no_grad():
        for name, value in tables.items():
            value.copy_(saved[name] * factor)
