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

from attncheck.core.errors import CannotInject, first_line
from attncheck.faults.engine import Fault
from attncheck.faults.engine.store_edits import wrapped_method
from attncheck.model.cache_kinds import crop, self_attention
from attncheck.model.decoding import rollback_cache
from attncheck.model.refusal import REFUSALS
from attncheck.model.subject import Subject

TOO_MANY = 1
TRIED = 3


@contextlib.contextmanager
def inject(subject: Subject) -> Iterator[None]:
    """Let `crop` keep one token more than it should."""

    def cropped(original: Any, cache: Any, length: int) -> None:
        # A negative length says how many tokens to remove, a positive one (older releases) how many
        # to keep: one added keeps one more either way.
        original(cache, length + TOO_MANY)

    with wrapped_method(type(cropped_cache(subject)), "crop", cropped):
        yield


def cropped_cache(subject: Subject) -> Any:
    """The cache of this model behind a roll-back and a continuation: its own, or the library's.

    Raises:
        CannotInject: this model's cache does not allow it, so nothing would go wrong.
    """
    row, half = subject.inputs.row, subject.inputs.length // 2
    try:
        cache = rollback_cache(subject)
        with torch.no_grad():
            for part in (row[:half], row[half : half + TRIED]):
                cache = subject.passes.call((part,), cache=cache, use_cache=True).cache
            crop(cache, TRIED)
            subject.passes.call((row[half:],), cache=cache, use_cache=True)
    except REFUSALS as error:
        raise CannotInject(
            f"the cache of this model cannot be rolled back and continued ({first_line(error)})"
        ) from error
    return self_attention(cache)


FAULT = Fault(name="cache-crop", inject=inject, on_cache_only=True)
