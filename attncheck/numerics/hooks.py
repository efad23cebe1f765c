"""Hooks of modules that are gone when the block that needed them ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from torch.utils.hooks import RemovableHandle


@contextlib.contextmanager
def hooked(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    """Remove these hooks at the end of the block. A single handle is a context manager itself."""
    with contextlib.ExitStack() as stack:
        for handle in handles:
            stack.enter_context(handle)
        yield
