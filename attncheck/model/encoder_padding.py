"""Encoder inputs in batches, and where padding of one reaches a token that should not read it.

Axes: B batch, S encoder positions, T decoder positions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attncheck.core.errors import Unsupported
from attncheck.model.generation import IDS, MASK
from attncheck.model.inputs import for_rows
from attncheck.model.subject import Subject
from attncheck.numerics.first_divergence import first_divergence
from attncheck.numerics.module_outputs import ModuleOutputs, recording

READS = "it reads the padding of the encoder's input"


def reader_of_padding(subject: Subject, padded: dict[str, Tensor]) -> str:
    """The first module that what stands under the padding of one encoder input moves: at a real
    token of the encoder, else in a step of the decoder; "" where it moves none.
    """
    ids_BS, real_BS = padded[IDS], padded[MASK].bool()
    other = {**padded, IDS: torch.where(real_BS, ids_BS, ids_BS.flip(1))}
    length = int(ids_BS.shape[1])
    right, moved = (_recorded(subject, each, length) for each in (padded, other))
    for one, two, real_BT in zip(right, moved, (real_BS.cpu(), None), strict=True):
        found = first_divergence(one, two, real_BT=real_BT)
        if found is not None:
            return found.home
    return ""


def _recorded(
    subject: Subject, encoder: dict[str, Tensor], length: int
) -> tuple[ModuleOutputs, ModuleOutputs]:
    """What modules return for each encoder token, and in the last step of the decoder."""
    row, cache = subject.inputs.row[:3], None
    modules = {name: module for name, module in subject.model.named_modules() if name}
    with torch.no_grad(), recording(modules) as recorder:
        for chunk in (row[:2], row[2:]):
            reply = subject.passes.call((chunk,), cache=cache, use_cache=True, extra=encoder)
            cache = reply.cache
    # what runs once projects the encoder states of all positions
    return recorder.outputs((1, length)), recorder.outputs((1, 1), calls=2)


def beside_another_encoder(subject: Subject, number: int) -> dict[str, Any]:
    """The encoder's usual input as row `number` of two, beside the same backwards.

    Raises:
        Unsupported: there is no encoder.
    """
    order = (False, True) if number == 0 else (True, False)
    return _encoder_rows(subject, order)


def another_input(subject: Subject) -> dict[str, Any]:
    """The encoder's usual input backwards; empty where there is no encoder."""
    return _encoder_rows(subject, (True,)) if subject.forward_adapter.fixed else {}


def _encoder_rows(subject: Subject, backwards: tuple[bool, ...]) -> dict[str, Any]:
    fixed = subject.forward_adapter.fixed
    if not fixed:
        raise Unsupported("the model has no encoder")

    def rows(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(rows, value))
        if not isinstance(value, Tensor) or value.ndim < 2:
            return value
        return torch.cat([value.flip(1) if back else value for back in backwards])

    like_BT = torch.empty(len(backwards), 1, device=subject.device)
    return {name: for_rows(rows(each), like_BT, subject.dtype) for name, each in fixed.items()}
