"""One guess at a failure: a fault of the catalogue with a parameter, and the logits that it would
give.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, final

from torch import Tensor

from attncheck.core.errors import Unsupported
from attncheck.faults.engine.trusted import Change, Trusted
from attncheck.model.forward_spec import ForwardSpec

Predict = Callable[[Trusted, ForwardSpec], Tensor]


@final
@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """One fault with one parameter: `change` says it on the trusted path, `predict` where no
    `Change` can say it.

    `holds` asks the model itself whether the fault can be there at all, where logits alone would
    not tell it from another; `everywhere` says that no layer can be without it.
    """

    fault: str
    parameter: str = ""
    change: Callable[[ForwardSpec], Change] | None = None
    predict: Predict | None = None
    holds: Callable[[Trusted], bool] | None = None
    everywhere: bool = False

    @property
    def label(self) -> str:
        """The fault and its parameter, in words."""
        return f"{self.fault} ({self.parameter})" if self.parameter else self.fault

    @property
    def by_layer(self) -> bool:
        """Whether one layer can have it and another not."""
        return self.change is not None and not self.everywhere

    def logits(self, trusted: Trusted, spec: ForwardSpec) -> Tensor:
        """logits_BTV of `spec` if exactly this fault were present.

        Raises:
            Unsupported: the model leaves no way to predict it.
        """
        if self.predict is not None:
            return self.predict(trusted, spec)
        assert self.change is not None
        return trusted.logits(spec, self.change(spec))

    def within(self, layers: range, said: str) -> Hypothesis:
        """The same fault in some layers only."""
        change = self.change
        assert change is not None

        def limited(spec: ForwardSpec) -> Change:
            return change(spec).within(layers)

        return replace(
            self, change=limited, parameter=", ".join(filter(None, (self.parameter, said)))
        )

    def joined(self, other: Hypothesis) -> Hypothesis | None:
        """This fault and another one at once; None where they cannot be said together."""
        mine, theirs = self.change, other.change
        if mine is None or theirs is None or other.fault == self.fault:
            return None

        def both(spec: ForwardSpec) -> Change:
            return _both(mine(spec), theirs(spec))

        return replace(
            self,
            change=both,
            parameter=", ".join(filter(None, (self.parameter, f"together with {other.label}"))),
        )


def _both(left: Change, right: Change) -> Change:
    """Two changes at once.

    Raises:
        Unsupported: both are of one kind, so that one would undo the other.
    """
    said: dict[str, Any] = {}
    for each in fields(Change):
        values = [getattr(change, each.name) for change in (left, right)]
        given = [value for value in values if value != each.default]
        if len(given) > 1 and given[0] != given[1] and each.name != "allowed":
            raise Unsupported(f"two changes of `{each.name}`")
        said[each.name] = given[0] if given else each.default
    first, second = left.allowed, right.allowed
    if first is not None and second is not None:
        said["allowed"] = lambda allowed, view: second(first(allowed, view), view)
    return Change(**said)
