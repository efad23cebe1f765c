"""How numbers are written for people: three significant figures at most."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from attncheck.core.measurement import AtMost, Comparison, Measurement, Quantity


@final
@dataclass(frozen=True)
class CaseCells:
    """The numbers of one case as texts; `-` for what its kind does not have."""

    amount: str = "-"
    allowed: str = "-"
    unit: str = ""
    mean: str = "-"
    kl: str = "-"
    flips: str = "-"
    first: str = "-"

    @property
    def measured(self) -> str:
        """The amount in its unit."""
        return f"{self.amount} {self.unit}".strip()


def cells(case: Measurement) -> CaseCells:
    """The numbers of a case for a table."""
    lost = f"{case.nonfinite} nan" if case.nonfinite else ""
    if isinstance(case, Quantity):
        limit = case.limit if isinstance(case, AtMost) else None
        return CaseCells(lost or number(case.value), number(limit), "" if lost else case.unit)
    if not isinstance(case, Comparison):
        return CaseCells()
    found = case.divergence
    return CaseCells(
        amount=lost or number(found.max_abs),
        allowed=number(case.budget),
        unit="" if lost else case.unit,
        mean=number(found.mean_abs),
        kl=number(found.kl),
        flips=number(found.top1_flips),
        first=number(found.first_position),
    )


def number(value: float | int | None) -> str:
    """`0`, `12`, `0.25`, `5.6`, `1.3e-13`, `nan`; `-` for nothing."""
    if value is None:
        return "-"
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if value == 0:
        return "0"
    if float(value).is_integer() and abs(value) < 1e5:
        return str(int(value))
    if 1e-3 <= abs(value) < 1e4:
        return f"{value:.3g}"
    return f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e")


def seconds(value: float) -> str:
    """`0.2 s`, `12 s`, `3 min 20 s`."""
    if value < 10:
        return f"{value:.1f} s"
    if value < 100:
        return f"{value:.0f} s"
    return f"{int(value // 60)} min {int(value % 60)} s"


def count(value: int) -> str:
    """A number of parameters: `66.4 k`, `134.5 M`, `7.2 B`."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return str(value)


def finite(value: Any) -> Any:
    """The same data with every number that is not finite as the string "nan", "inf" or "-inf"."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value
