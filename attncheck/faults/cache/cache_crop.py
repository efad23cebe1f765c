"""What it is
    Cropping the cache leaves too many or too few tokens.

How it looks
    Assisted decoding and prefix reuse go wrong after the first rejected token; plain decoding is
    right.

Where it comes from
    Negative and positive lengths mixed up; counters that are not cropped with the tensors; windows
    that cannot be cropped.

What to change
    Crop keys, values, counters and recurrent states together, and refuse where one of them cannot
    be.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import transformers

from attncheck.core.errors import CannotInject, first_line
from attncheck.faults.engine import Fault
from attncheck.model.cache_kinds import crop, may_crop, new_cache
from attncheck.model.refusal import REFUSALS
from attncheck.model.subject import Subject

TOO_MANY = 1
TRIED = 3


@contextlib.contextmanager
def inject(subject: Subject) -> Iterator[None]:
    """Let `crop` keep one token more than it should."""
    owner = next((each for each in transformers.DynamicCache.__mro__ if "crop" in vars(each)), None)
    if owner is None:
        raise CannotInject("the library's cache has no `crop`")
    _require_cropping(subject)
    original = owner.crop

    def cropped(self: Any, length: int) -> None:
        # A negative length says how many tokens to remove, a positive one (older releases) how many
        # to keep: one added keeps one more either way.
        original(self, length + TOO_MANY)

    owner.crop = cropped
    try:
        yield
    finally:
        owner.crop = original


def _require_cropping(subject: Subject) -> None:
    """Try to roll the cache back and to continue on it.

    Raises:
        CannotInject: this model's cache does not allow it, so nothing would go wrong.
    """
    row, half = subject.inputs.row, subject.inputs.length // 2
    cache = new_cache(
        "dynamic", subject.model, rows=1, length=subject.inputs.length, dtype=subject.dtype
    )
    may_crop(cache)
    try:
        with torch.no_grad():
            for part in (row[:half], row[half : half + TRIED]):
                cache = subject.passes.call((part,), cache=cache, use_cache=True).cache
            crop(cache, TRIED)
            subject.passes.call((row[half:],), cache=cache, use_cache=True)
    except REFUSALS as error:
        raise CannotInject(
            f"the cache of this model cannot be rolled back and continued ({first_line(error)})"
        ) from error


FAULT = Fault(name="cache-crop", inject=inject, on_cache_only=True)
