"""What it is
    Rolling a cache back leaves the counter of a buffer that was made in advance.

How it looks
    Assisted decoding and prefix reuse are right on a growing cache and wrong on a static one.

Where it comes from
    `crop` cuts tensors that a static buffer does not cut, and forgets what says how many slots are
    filled.

What to change
    Move the counter back; what lies behind it is overwritten by the next tokens.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import transformers

from attncheck.core.errors import CannotInject, first_line
from attncheck.faults.engine import Fault
from attncheck.faults.engine.store_edits import wrapped_method
from attncheck.model.cache_kinds import crop
from attncheck.model.decoding import rollback_cache
from attncheck.model.refusal import REFUSALS
from attncheck.model.subject import Subject

TRIED = 2


@contextlib.contextmanager
def inject(subject: Subject) -> Iterator[None]:
    """Let `crop` leave static caches as they are.

    Raises:
        CannotInject: a static cache of this model cannot be rolled back.
    """
    _require_cropping(subject)

    def cropped(original: Any, cache: Any, length: int) -> None:
        if not isinstance(cache, transformers.StaticCache):
            original(cache, length)

    with wrapped_method(transformers.StaticCache, "crop", cropped):
        yield


def _require_cropping(subject: Subject) -> None:
    half = subject.inputs.length // 2
    try:
        cache = rollback_cache(subject, "static")
        with torch.no_grad():
            subject.passes.call((subject.inputs.row[:half],), cache=cache, use_cache=True)
        crop(cache, TRIED)
    except REFUSALS as error:
        raise CannotInject(
            f"a static cache of this model cannot be rolled back ({first_line(error)})"
        ) from error


FAULT = Fault(name="static-crop", inject=inject, on_cache_only=True, looks_like=("cache-crop",))
