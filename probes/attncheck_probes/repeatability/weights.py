"""The weights and buffers of a model before and after its forwards."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attncheck.probing import (
    AtMost,
    Figure,
    Measurement,
    Subject,
    as_numbers,
    changed,
    chosen,
    weights_in_memory,
)

WEIGHTS = "weights changed by a forward"


def samples(subject: Subject) -> dict[str, Tensor]:
    """A few numbers of each weight: copies of all weights would double the memory."""
    return {name: _sample(value) for name, value in weights_in_memory(subject.model).items()}


def _sample(weight: Tensor) -> Tensor:
    return as_numbers(weight.detach()).flatten()[:: max(1, weight.numel() // 4096)].clone()


def changes(
    subject: Subject, before: dict[str, Tensor], buffers: dict[str, Tensor]
) -> Iterator[Measurement]:
    """Weights that changed, and the number of buffers that did."""
    if not chosen(WEIGHTS):
        return
    now = samples(subject)
    weights = sorted(name for name in now if not torch.equal(now[name], before[name]))
    name, compared = WEIGHTS, len(before) + len(buffers)
    note = ", ".join(weights[:3])
    yield AtMost(name, float(len(weights)), "weights", positions=compared, note=note)
    name, found = "buffers changed by a forward", sorted(changed(subject.model, buffers))
    yield Figure(name, float(len(found)), "buffers", note=", ".join(found[:3]))
