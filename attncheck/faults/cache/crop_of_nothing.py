"""What it is
    Rolling a cache back by no token takes one away.

How it looks
    Assisted decoding goes wrong where every candidate is accepted; after a rejected one it is
    right.

Where it comes from
    `keys[:, :, :-n]` for n = 0 and the repairs of it; lengths that count the token to be fed.

What to change
    Return early for 0, or keep by length instead of removing from the end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from attncheck.faults.cache.cache_crop import cropped_cache
from attncheck.faults.engine import Fault
from attncheck.faults.engine.store_edits import wrapped_method
from attncheck.model.compat import cached_length
from attncheck.model.subject import Subject


@contextlib.contextmanager
def inject(subject: Subject) -> Iterator[None]:
    """Let `crop(0)` remove the newest token.

    Raises:
        CannotInject: this model's cache cannot be rolled back.
    """

    def cropped(original: Any, cache: Any, length: int) -> None:
        original(cache, length or (-1 if cached_length(cache) else 0))

    with wrapped_method(type(cropped_cache(subject)), "crop", cropped):
        yield


FAULT = Fault(name="crop-of-nothing", inject=inject, on_cache_only=True)
