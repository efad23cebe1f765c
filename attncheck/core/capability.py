"""Something that a model may be able to take: true where it can, and with the reason where it
cannot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from attncheck.core.errors import Unsupported


@final
@dataclass(frozen=True)
class Capability:
    """True where the model can; `reason` is a sentence where it cannot, and becomes the reason of a
    `skip`.
    """

    reason: str = ""

    def __bool__(self) -> bool:
        return not self.reason

    def __and__(self, other: Capability) -> Capability:
        return other if self else self

    def require(self, error: type[Unsupported] = Unsupported) -> None:
        """Do nothing where the model can.

        Raises:
            Unsupported: it cannot (or another `error`), with the reason.
        """
        if self.reason:
            raise error(self.reason)
