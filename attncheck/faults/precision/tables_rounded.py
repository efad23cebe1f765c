"""What it is
    Rotary frequencies, angles or position tables are stored or computed in half precision.

How it looks
    Right near the start of a row, wrong far into it: angles of late positions are off by whole
    radians. Later tokens get the angle of an earlier one.

Where it comes from
    `model.half()` or `model.to(torch.bfloat16)`, which casts the buffers as well; positions
    multiplied in the dtype of the hidden states.

What to change
    Keep frequencies and positions in float32, and round sines and cosines once, when they meet the
    queries and keys.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from attncheck.attention.rope import inv_freq_buffers
from attncheck.attention.rotary_tables import stored_tables
from attncheck.core.errors import CannotInject
from attncheck.faults.engine import Fault
from attncheck.faults.engine.rounding import HALF_BITS, with_bits
from attncheck.model.subject import Subject
from attncheck.numerics.repairs import WidePositions


@contextlib.contextmanager
def inject(subject: Subject) -> Iterator[None]:
    """Round the tables and frequencies that the model keeps to the bits of bfloat16."""
    kept = [(each, each.clone()) for each in _tables(subject)]
    rounded = [(each, with_bits(value, HALF_BITS)) for each, value in kept]
    if all(torch.equal(each, value) for each, value in rounded):
        raise CannotInject("the model keeps no table and no frequencies that rounding would change")
    _fill(rounded)
    try:
        yield
    finally:
        _fill(kept)


def _tables(subject: Subject) -> list[Tensor]:
    tables = {id(each): each for each in stored_tables(subject.model)}
    tables.update((id(each), each) for each in inv_freq_buffers(subject.model).values())
    return [each for each in tables.values() if each.device.type != "meta"]


@torch.no_grad()
def _fill(values: list[tuple[Tensor, Tensor]]) -> None:
    for table, value in values:
        table.copy_(value)


@contextlib.contextmanager
def repair(subject: Subject) -> Iterator[None]:
    """The tables as they were before the cast, and positions that stay exact."""
    with subject.loaded.tables.unrounded(subject.model), WidePositions():
        yield


FAULT = Fault(name="tables-rounded", inject=inject, repair=repair)
