"""What a fault is to the engine: a name, the words that explain it, and a way to plant it in a
healthy model.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from attncheck.model.subject import Subject

Plant = Callable[["Subject"], AbstractContextManager[None]]


@final
@dataclass(frozen=True, kw_only=True)
class Fault:
    """One kind of attention bug. `inject(subject)` is a context in which the model has it.

    `on_cache_only` says that forwards without a cache stay as they are, so that their passes are
    shared with the healthy model. `inject` raises `CannotInject` with the reason where the model
    has no place for it.
    """

    name: str
    inject: Plant
    on_cache_only: bool = False
