"""What it is
    Reordering the rows of a buffer that was made in advance moves its keys and leaves its values.

How it looks
    Beam search is right on a growing cache and wrong on a static one.

Where it comes from
    A buffer is indexed into a new tensor that nobody keeps, since the old address must stay.

What to change
    Copy keys and values of every layer into their buffers by the same index.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import transformers
from torch import Tensor

from attncheck.core.errors import CannotInject
from attncheck.faults.engine import Fault
from attncheck.faults.engine.store_edits import wrapped_method
from attncheck.model.cache_kinds import self_attention
from attncheck.model.caches import VALUES, key_values
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.subject import Subject

TRIED = 4


@contextlib.contextmanager
def inject(subject: Subject) -> Iterator[None]:
    """Put the values of static caches back after `reorder_cache`.

    Raises:
        CannotInject: the model takes no static cache, or keeps no keys and values in it.
    """
    row = subject.inputs.row[:TRIED]
    if not key_values(subject.passes.cache(ForwardSpec((row,), cache_kind="static"))):
        raise CannotInject("a static cache of this model holds no keys and values")

    def reordered(original: Any, cache: Any, index: Any) -> None:
        static = isinstance(self_attention(cache), transformers.StaticCache)
        before = [each.clone() for each in _values(cache)] if static else []
        original(cache, index)
        for now, value in zip(_values(cache), before, strict=False):
            now.copy_(value)

    with wrapped_method(transformers.StaticCache, "reorder_cache", reordered):
        yield


def _values(cache: Any) -> list[Tensor]:
    return [each.tensor for each in key_values(cache) if each.name in VALUES]


FAULT = Fault(name="static-reorder", inject=inject, on_cache_only=True)
