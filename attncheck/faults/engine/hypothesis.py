"""A hypothesis about wrong logits: one fault with one parameter, and the logits that it predicts.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, final

from torch import Tensor

from attncheck.core.errors import Unsupported
from attncheck.faults.engine.trusted import Change, Trusted
from attncheck.model.forward_spec import ForwardSpec, Mask2D
from attncheck.model.provenance import Provenance
from attncheck.model.subject import Subject

Predict = Callable[[Trusted, ForwardSpec], Tensor]


def words(*parts: str) -> str:
    """The parts of a parameter that are not empty, separated by commas."""
    return ", ".join(filter(None, parts))


@final
@dataclass(frozen=True)
class WrongForward:
    """A forward whose logits are wrong. `provenance` says how they were made, if not by it."""

    trusted: Trusted
    spec: ForwardSpec
    provenance: Provenance | None = None

    @property
    def subject(self) -> Subject:
        """The model under test."""
        return self.trusted.subject

    @property
    def chunked(self) -> bool:
        """Whether later chunks continue on a cache."""
        return len(self.spec.chunks) > 1

    @property
    def padded(self) -> bool:
        """Whether a 2D mask hides padding."""
        mask = self.spec.mask
        return isinstance(mask, Mask2D) and any(0 in row for row in mask.rows)

    @property
    def attends(self) -> bool:
        """Whether the trusted path computes attention itself, so that any part of it can change."""
        return self.trusted.out_of_reach is None


@final
@dataclass(frozen=True)
class Hypothesis:
    """One fault with one parameter, as a change of the trusted path or as a prediction of its own.

    `change` is a `Change`, or makes one for a forward; `predict` serves where no `Change` can
    express the fault. `holds` asks the model itself whether the fault is possible, where the logits
    alone cannot decide. `without` predicts the same path without the fault: where that gives the
    same logits, the fault explains nothing. `everywhere` says that no single layer can have it.
    The registry adds the name of the fault.
    """

    parameter: str = ""
    change: Change | Callable[[ForwardSpec], Change] | None = None
    predict: Predict | None = None
    holds: Callable[[Trusted], bool] | None = None
    without: Predict | None = None
    everywhere: bool = False
    fault: str = ""

    @property
    def label(self) -> str:
        """The fault and its parameter."""
        return f"{self.fault} ({self.parameter})" if self.parameter else self.fault

    @property
    def by_layer(self) -> bool:
        """Whether one layer can have it and another not."""
        return self.change is not None and not self.everywhere

    def change_of(self, spec: ForwardSpec) -> Change | None:
        """The change of the trusted path for one forward; None where `predict` is used."""
        return self.change(spec) if callable(self.change) else self.change

    def logits(self, trusted: Trusted, spec: ForwardSpec) -> Tensor:
        """logits_BTV of `spec` if exactly this fault were present.

        Raises:
            Unsupported: the model leaves no way to predict it.
        """
        change = self.change_of(spec)
        if self.predict is not None:
            return self.predict(trusted, spec)
        assert change is not None
        return trusted.logits(spec, change)

    def within(self, layers: range, where: str) -> Hypothesis:
        """The same fault in some layers only."""

        def limited(spec: ForwardSpec) -> Change:
            change = self.change_of(spec)
            assert change is not None
            return replace(change, layers=layers)

        return replace(self, change=limited, parameter=words(self.parameter, where))

    def joined(self, other: Hypothesis) -> Hypothesis | None:
        """This fault and another one at once; None where they cannot be combined."""
        if self.change is None or other.change is None or other.fault == self.fault:
            return None

        def both(spec: ForwardSpec) -> Change:
            first, second = self.change_of(spec), other.change_of(spec)
            assert first is not None
            assert second is not None
            return _both(first, second)

        return replace(
            self, change=both, parameter=words(self.parameter, f"together with {other.label}")
        )


def _both(left: Change, right: Change) -> Change:
    """Two changes at once.

    Raises:
        Unsupported: both set the same field, so one would undo the other.
    """
    joined: dict[str, Any] = {}
    for each in fields(Change):
        values = [getattr(change, each.name) for change in (left, right)]
        given = [value for value in values if value != each.default]
        if len(given) > 1 and given[0] != given[1] and each.name != "allowed":
            raise Unsupported(f"two changes of `{each.name}`")
        joined[each.name] = given[0] if given else each.default
    # Readable keys can be changed twice in turn; every other field holds one value.
    first, second = left.allowed, right.allowed
    if first is not None and second is not None:
        joined["allowed"] = lambda allowed, view: second(first(allowed, view), view)
    return Change(**joined)
