"""The smallest dose of a fault that each probe catches: a scale that is off by ever less, a later
token that weighs ever less, in one head of one layer or in all, in each precision.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import final

from attncheck.core.errors import CannotInject
from attncheck.probing import Probe
from attncheck.run.random_faults.inject import Injector
from attncheck.run.random_faults.parts import RandomFault
from attncheck.run.random_faults.trial import Trials

HEADING = "## Smallest doses"
DTYPES = ("float64", "float32", "bfloat16")
SHOWN = 3
DOSES = tuple(10.0**-power for power in range(1, 13))


@final
@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of fault in doses. `how` is a change whose number is the dose, or 1 + the dose where
    the change is by a factor; `alone` limits it to one head of the last layer.
    """

    words: str
    what: str
    how: str
    when: str = "always"
    tokens: str = ""
    factor: bool = False
    alone: bool = False

    def fault(self, dose: float, module: str) -> RandomFault:
        """The fault at one dose; `module` is the attention of the last layer."""
        number = 1.0 + dose if self.factor else dose
        fault = RandomFault(what=self.what, how=f"{self.how}:{number!r}", when=self.when)
        fault = replace(fault, tokens=self.tokens) if self.tokens else fault
        return replace(fault, at=module, heads="0") if self.alone else fault


KINDS = (
    Kind(words="scores times 1 + dose", what="queries", how="scale", factor=True),
    Kind(words="the same, one head", what="queries", how="scale", factor=True, alone=True),
    Kind(words="keys turned by a dose of one position", what="keys", how="angle"),
    Kind(words="the same, one head", what="keys", how="angle", alone=True),
    Kind(words="rotary base of keys times 1 + dose", what="keys", how="base", factor=True),
    Kind(words="the next token's values, times the dose", what="values", how="leak"),
    Kind(words="the same, one head", what="values", how="leak", alone=True),
    Kind(words="the next row's values, times the dose", what="values", how="spill", when="batch"),
    Kind(words="the same, one head", what="values", how="spill", when="batch", alone=True),
    Kind(words="stored keys times 1 + dose", what="stored-keys", how="scale", factor=True),
    Kind(
        words="the same, one slot",
        what="stored-keys",
        how="scale",
        factor=True,
        tokens="4-4",
    ),
    Kind(words="stored values times 1 + dose", what="stored-values", how="scale", factor=True),
)


@final
@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """Of one kind in one precision: the smallest dose that moves logits beyond rounding there, and
    the smallest that each probe caught; `reason` says why it cannot be injected.
    """

    dtype: str
    words: str
    moves: float | None = None
    caught: dict[str, float] = field(default_factory=dict)
    reason: str = ""

    @property
    def missed(self) -> bool:
        """Whether a dose that shows is caught by no probe."""
        return self.moves is not None and self.moves < min(self.caught.values(), default=1.0)


def sensitivities(trials: Trials, dtype: str) -> Iterator[Sensitivity]:
    """Every kind in one subject. A probe that misses a dose is not asked about smaller ones."""
    module = next(each.module for each in reversed(trials.sites.attention) if not each.cross)
    for kind in KINDS:
        result = Sensitivity(dtype=dtype, words=kind.words)
        try:
            yield _descended(trials, kind, module, result)
        except CannotInject as reason:
            yield replace(result, reason=str(reason))


def _descended(trials: Trials, kind: Kind, module: str, result: Sensitivity) -> Sensitivity:
    moves: float | None = None
    caught: dict[str, float] = {}
    asked: Sequence[Probe] = trials.probes
    shows = True
    for dose in DOSES:
        injector = Injector(trials.sites, kind.fault(dose, module))
        if shows := shows and bool(trials.healthy.moved(injector)):
            moves = dose
        asked = [probe for probe in asked if trials.noticed(injector, probe) is not None]
        caught |= {probe.name: dose for probe in asked}
        if not asked and not shows:
            break
    return replace(result, moves=moves, caught=caught)


def line(row: Sensitivity) -> str:
    """One kind in one precision for the terminal, the most sensitive probes first."""
    head = f"{row.dtype:9s} {row.words:45s} "
    if row.reason:
        return f"{head}-  {row.reason}"
    best = sorted(row.caught.items(), key=lambda item: item[1])[:SHOWN]
    caught = ", ".join(f"{_dose(dose)} {probe}" for probe, dose in best) or "MISSED"
    return f"{head}shows {_dose(row.moves):6s} caught {caught}"


def section(found: Sequence[Sensitivity], command: str) -> str:
    """The section of docs/coverage.md: a table for each precision."""
    return "\n".join(
        [
            HEADING,
            "",
            f"Written by `{command}`.",
            "Each fault is injected in doses of 0.1, 0.01 and so on down to",
            "1e-12; a number is the smallest dose that is still caught, without controls. *Shows*:",
            "the smallest that moves the logits of an ordinary call by 100 budgets of the stored",
            "precision. A smaller one is caught where a doubt is settled in float64.",
            *(line for dtype in DTYPES for line in _table(dtype, found)),
            "",
        ]
    )


def _table(dtype: str, found: Sequence[Sensitivity]) -> list[str]:
    rows = [each for each in found if each.dtype == dtype]
    probes = list(dict.fromkeys(name for each in found for name in each.caught))
    return [
        "",
        f"| {dtype} | shows | {' | '.join(probes)} |",
        "|---" * (len(probes) + 2) + "|",
        *(_line(each, probes) for each in rows),
    ]


def _line(row: Sensitivity, probes: Sequence[str]) -> str:
    if row.reason:
        return f"| {row.words} | {row.reason} |" + " |" * len(probes)
    doses = (row.moves, *map(row.caught.get, probes))
    return f"| {row.words} | {' | '.join(_dose(each) for each in doses)} |"


def _dose(dose: float | None) -> str:
    return "·" if dose is None else f"{dose:.0e}".replace("e-0", "e-") if dose < 0.1 else "0.1"
