"""One guess at what an engine does wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from attncheck.engines.twin import Predicts

AND = " and "
"""Between faults that an engine has at once."""


@final
@dataclass(frozen=True, kw_only=True)
class EngineGuess:
    """A fault with a parameter, and what makes the prediction of its log-probabilities; that may
    raise `Unsupported`. `by_prefix` says that a prediction holds for its last row only.
    """

    fault: str
    parameter: str
    made: Callable[[], Predicts]
    advice: str = ""
    by_prefix: bool = False

    @property
    def faults(self) -> frozenset[str]:
        """The fault, or those that are there at once."""
        return frozenset(self.fault.split(AND))

    @property
    def label(self) -> str:
        """The fault and its parameter."""
        return f"{self.fault} ({self.parameter})" if self.parameter else self.fault
