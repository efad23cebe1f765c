"""Which faults are injected into a model now."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

Faults = tuple[tuple[int, str], ...]


@final
@dataclass
class Injection:
    """The faults that are injected into a model now. Each injection has a number of its own: what
    was found under one is no answer later, not even under the same fault.
    """

    active: Faults = ()
    on_cache_only: bool = False
    count: int = 0

    @contextlib.contextmanager
    def of(self, fault: str, on_cache_only: bool) -> Iterator[None]:
        """One more fault is active inside; a fault of the cache leaves uncached forwards alone."""
        before = self.active, self.on_cache_only
        self.count += 1
        self.active, self.on_cache_only = (*self.active, (self.count, fault)), on_cache_only
        try:
            yield
        finally:
            self.active, self.on_cache_only = before
