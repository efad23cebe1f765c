"""What one fault is: how it is injected into a healthy model and which hypotheses predict it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import final

from attncheck.core.errors import CannotInject
from attncheck.faults.engine.dose import require_taken, smallest
from attncheck.faults.engine.hypothesis import Hypothesis, WrongForward
from attncheck.model.subject import Subject

Injected = AbstractContextManager[None]


@final
@dataclass(frozen=True, kw_only=True)
class Fault:
    """One kind of attention bug.

    `inject(subject)` is a context in which the model has the fault; it raises `CannotInject` with
    the reason where the model has no place for it. `on_cache_only` says that forwards without a
    cache stay right, so their logits are shared with the healthy model. `looks_like` names faults
    whose logits are the same on some calls: a diagnosis may name one of them instead.

    `hypotheses` makes the hypotheses of this fault that fit a forward, by rank. Of hypotheses that
    predict the same logits the one of the lowest rank is named. Ranks are in groups: 100 what
    generate() does, 200 positions, 300 masks, 400 the cache, 500 scores.

    `repair` is a context that takes the fault out of a model whose narrow dtype has it, and leaves
    any other model as it is: a difference that it removes is shown to come from this fault.
    """

    name: str
    inject: Callable[[Subject], Injected]
    hypotheses: Mapping[int, Callable[[WrongForward], Iterator[Hypothesis]]] = field(
        default_factory=dict
    )
    on_cache_only: bool = False
    looks_like: tuple[str, ...] = ()
    repair: Callable[[Subject], Injected] | None = None

    @contextlib.contextmanager
    def injected(self, subject: Subject) -> Iterator[None]:
        """Inject the fault; its logits are remembered apart from those of the healthy model."""
        with self.inject(subject), subject.passes.under(self.name, self.on_cache_only):
            yield

    @contextlib.contextmanager
    def repaired(self, subject: Subject) -> Iterator[None]:
        """Repair the fault; what runs there is remembered apart from the model as it is.

        Raises:
            CannotInject: the fault has no repair.
        """
        if self.repair is None:
            raise CannotInject(f"{self.name} has no repair")
        with self.repair(subject), subject.passes.under(f"without {self.name}", False):
            yield

    @contextlib.contextmanager
    def injected_once(self, subject: Subject) -> Iterator[None]:
        """Inject the smallest dose of the fault: one head of one layer at one position, one slot.

        Raises:
            CannotInject: the fault changes whole calls.
        """
        with smallest() as dose, self.injected(subject):
            require_taken(dose)
            yield
