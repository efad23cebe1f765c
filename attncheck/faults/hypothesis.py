"""One guess at a failure: a fault of the catalogue with a parameter, and the logits that it would give.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

from torch import Tensor

from attncheck.faults.predict import Change, Trusted
from attncheck.subject.passes import Pass

Predict = Callable[[Trusted, Pass], Tensor]


@final
@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """One fault with one parameter: `change` says it on the trusted path, `predict` where no `Change` can say it.

    `holds` asks the model itself whether the fault can be there at all, where logits alone would not tell it from another.
    """

    fault: str
    parameter: str = ""
    change: Callable[[Pass], Change] | None = None
    predict: Predict | None = None
    holds: Callable[[Trusted], bool] | None = None

    @property
    def label(self) -> str:
        """The fault and its parameter, in words."""
        return f"{self.fault} ({self.parameter})" if self.parameter else self.fault

    @property
    def by_layer(self) -> bool:
        """Whether one layer can have it and another not."""
        return self.change is not None

    def logits(self, trusted: Trusted, asked: Pass) -> Tensor:
        """logits_BTV of `asked` if exactly this fault were present.

        Raises:
            Unsupported: the model leaves no way to predict it.
        """
        if self.predict is not None:
            return self.predict(trusted, asked)
        assert self.change is not None
        return trusted.logits(asked, self.change(asked))

    def within(self, layers: range, said: str) -> Hypothesis:
        """The same fault in some layers only."""
        change = self.change
        assert change is not None

        def limited(asked: Pass) -> Change:
            return change(asked).within(layers)

        return replace(self, change=limited, parameter=", ".join(filter(None, (self.parameter, said))))
