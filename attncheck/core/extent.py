"""How much of a run is asked: all of it, the chosen cases, or what fits into a time. Standard
library only.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import final

from attncheck.core.errors import UsageError

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}


@final
@dataclass(frozen=True)
class RunExtent:
    """`quick` asks the chosen cases only; `seconds` is how long the probes of one model may take,
    most telling cases first.
    """

    quick: bool = False
    seconds: float | None = None

    @property
    def whole(self) -> bool:
        """Whether every case of every probe is asked."""
        return not self.quick and self.seconds is None

    @property
    def options(self) -> tuple[str, ...]:
        """The options that ask for it; none where everything is asked."""
        quick = ("--quick",) if self.quick else ()
        return quick if self.seconds is None else (*quick, f"--budget {self.seconds:g}s")


WHOLE = RunExtent()


def seconds_of(text: str) -> float:
    """The seconds of `30s`, `2m`, `1.5h`, or a number without a unit.

    Raises:
        UsageError: anything else, or a time that is not above 0.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    seconds = float(match[1]) * UNITS[match[2]] if match else 0.0
    if not 0 < seconds < math.inf:
        raise UsageError(f"--budget {text}: expected a time such as 30s or 2m")
    return seconds
