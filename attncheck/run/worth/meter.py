"""Count the forwards of a piece of work, told apart by who else can use them: remembered passes and
capabilities by name, and the rest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import final

from attncheck.core.errors import Unsupported
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.subject import Subject


@final
@dataclass
class Meter:
    """Meters work on a model. The budget is measured before: every run needs it, and once."""

    subject: Subject
    known: dict[str, int] = field(default_factory=dict)

    def of(self, work: Callable[[Subject], object]) -> tuple[dict[str, int], int]:
        """The shared forwards of some work by name, and its own, where nothing ran before."""
        fresh = Subject(self.subject.loaded, self.subject.precision)
        _ = fresh.budget
        fresh.passes.forget()
        before = fresh.loaded.forwards
        work(fresh)
        total = fresh.loaded.forwards - before
        shared = {_digest(spec): len(spec.chunks) or 1 for spec in fresh.passes.forget()}
        for name in [key[0] for key in fresh.can.found if key is not None]:
            shared[f"can {name}"] = self._capability(name)
        return shared, max(0, total - sum(shared.values()))

    def _capability(self, name: str) -> int:
        """The forwards of one capability that no other and no remembered pass stands for."""
        if name not in self.known:
            self.known[name] = 0  # one that asks itself in another way costs nothing more
            self.known[name] = self.of(partial(_learn, name))[1]
        return self.known[name]


def _digest(spec: ForwardSpec) -> str:
    return hashlib.blake2s(repr(spec).encode(), digest_size=6).hexdigest()


def _learn(name: str, subject: Subject) -> None:
    with suppress(Unsupported):
        getattr(subject.can, name)
