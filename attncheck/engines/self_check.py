"""An engine compared with itself: families of questions, budgets, controls and names.

What is judged in one family never sets its own budget: that comes from the twin in transformers, or
else from the other families.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import final

from attncheck.core.finding import Control, Diagnosis, Finding
from attncheck.core.measurement import BrokenCall, Measurement, verdict_of
from attncheck.core.verdict import Verdict
from attncheck.engines.against import on_grid
from attncheck.engines.engine import Engine, EngineError, EngineGone, LogProbs
from attncheck.engines.families import FAMILIES
from attncheck.engines.findings import engine_finding
from attncheck.engines.injecting import FAULTS, InjectingEngine, Where
from attncheck.engines.pairs import Asker, Edit, RowPair
from attncheck.engines.rows import RowBudget, row_gap
from attncheck.faults.registry import advice

EPS = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
LEAST = {"float32": 64.0, "float16": 4.0, "bfloat16": 4.0}
"""The least budget in roundings of the largest log-probability."""
TIMES = 8.0
"""A budget is so many times what the other families differ by."""
BOTH = 2.0
"""Both sides of a comparison round, where a twin's budget is that of one."""
QUANTILE = 0.9
FAR = 3.0
WHERE: dict[str, Where] = {
    "engine-scoring": "scoring",
    "engine-decode": "decode",
    "engine-chunks": "chunks",
    "engine-cache": "cache",
    "engine-batch": "batch",
}
"""Where the control of each family injects its fault."""
NAMELESS = "No edit of the prompt gives these log-probabilities."


@final
@dataclass
class SelfCheck:
    """All families of questions to one engine. `twin` is the budget that the same weights give in
    transformers, if they are there; `tells` hears what is asked now.
    """

    engine: Engine
    twin: RowBudget | None = None
    tells: Callable[[str], None] = lambda what: None
    pairs: dict[str, list[RowPair]] = field(default_factory=dict)
    broken: dict[str, EngineError] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def findings(self) -> Iterator[Finding]:
        """A finding for each family; those that were measured before the engine was gone, too.

        Raises:
            EngineGone: the engine answers nothing any more.
        """
        gone: EngineGone | None = None
        for name in FAMILIES:
            try:
                self._measure(name)
            except EngineGone as error:
                gone = error
                break
        for name in list(self.pairs):
            if self.pairs[name] or name in self.broken:
                yield self._finding(name, controlled=gone is None)
        if gone is not None:
            raise gone

    def _measure(self, name: str) -> None:
        self.tells(name)
        started, found = time.perf_counter(), self.pairs.setdefault(name, [])
        try:
            for pair in FAMILIES[name](Asker(self.engine)):
                found.append(pair)
        except EngineGone:
            raise
        except EngineError as error:
            self.broken[name] = error
        self.seconds[name] = time.perf_counter() - started

    def _finding(self, name: str, controlled: bool) -> Finding:
        budget = self.budget(name)
        cases = [pair.case(budget) for pair in self.pairs[name]]
        if name in self.broken:
            cases.append(BrokenCall("a request", note=str(self.broken[name])))
        passed = any(verdict_of(case) is Verdict.PASS for case in cases)
        backed = controlled and passed and name in WHERE
        controls = [self._control(name, budget)] if backed else None
        finding = engine_finding(name, cases, controls)
        diagnosis = None
        if finding.verdict in (Verdict.FAIL, Verdict.WARN) and controlled:
            diagnosis = self._diagnosis(self.pairs[name], cases, budget)
        return replace(finding, diagnosis=diagnosis, seconds=self.seconds.get(name, 0.0))

    def budget(self, name: str) -> RowBudget:
        """What rounding explains in one family."""
        if self.twin is not None:
            return RowBudget(
                max_abs=BOTH * self.twin.max_abs,
                kl=BOTH * self.twin.kl,
                source=f"{self.twin.source}, on both sides",
            )
        rows = [row for pairs in self.pairs.values() for pair in pairs for row in pair.want]
        least = least_budget(rows)
        others = {
            other: [gap for pair in pairs for gap in pair.gaps]
            for other, pairs in self.pairs.items()
            if other != name and any(pair.got for pair in pairs)
        }
        largest = {
            other: _quantile([gap.max_abs for gap in gaps]) for other, gaps in others.items()
        }
        kls = {other: _quantile([gap.kl for gap in gaps]) for other, gaps in others.items()}
        gap, kl = _middle(largest), _middle(kls)
        source = f"the other families of questions {gap:.1e} x {TIMES:.0f}"
        if TIMES * gap <= least.max_abs:
            source = least.source
        return RowBudget(
            max_abs=max(TIMES * gap, least.max_abs), kl=max(TIMES * kl, least.kl), source=source
        )

    def _control(self, name: str, budget: RowBudget) -> Control | None:
        """Whether the family sees its fault injected."""
        where = WHERE[name]
        self.tells(f"{name} with {FAULTS[where]} injected")
        largest, injected = 0.0, Asker(InjectingEngine(self.engine, where))
        try:
            for pair in FAMILIES[name](injected):
                case = pair.case(budget)
                largest = max([largest, *(gap.max_abs for gap in pair.gaps)])
                if verdict_of(case) in (Verdict.FAIL, Verdict.WARN):
                    return Control(
                        fault=FAULTS[where], detected=True, max_abs=largest, case=case.name
                    )
        except EngineGone:
            raise
        except EngineError:
            return None
        return Control(fault=FAULTS[where], detected=False, max_abs=largest)

    def _diagnosis(
        self, pairs: list[RowPair], cases: list[Measurement], budget: RowBudget
    ) -> Diagnosis | None:
        """The edit of a prompt that gives the first wrong row of a failing case."""
        asker = Asker(self.engine)
        for pair, case in zip(pairs, cases, strict=False):
            if verdict_of(case) not in (Verdict.FAIL, Verdict.WARN):
                continue
            for row, want, edits in zip(pair.got, pair.want, pair.edits, strict=False):
                if row_gap(row, want).max_abs > budget.max_abs and edits:
                    return _named(asker, row, edits, budget.max_abs)
        return None


def _named(
    asker: Asker, row: LogProbs, edits: tuple[Edit, ...], allowed: float
) -> Diagnosis | None:
    tried = []
    for ids, (fault, parameter) in {ids: each for *each, ids in reversed(edits)}.items():
        try:
            tried.append((row_gap(row, asker.fresh(ids)).max_abs, fault, parameter))
        except EngineError:
            continue
    tried.sort()
    if not tried:
        return None
    residual, fault, parameter = tried[0]
    others = [each for each in tried[1:] if each[1:] != tried[0][1:]]
    clear = not others or others[0][0] > FAR * residual
    runner = (
        {"fault": f"{others[0][1]} ({others[0][2]})", "residual": others[0][0]} if others else None
    )
    if residual > allowed or not clear:
        near = {"fault": f"{fault} ({parameter})", "residual": residual}
        return Diagnosis(fault="", how="unexplained", advice=NAMELESS, runner_up=near)
    return Diagnosis(
        fault=fault,
        how="reproduced",
        residual=residual,
        runner_up=runner,
        advice=f"{parameter[0].upper()}{parameter[1:]}. {advice(fault)}",
    )


def least_budget(rows: list[LogProbs]) -> RowBudget:
    """The budget of an engine that differs by nothing: roundings of its own log-probabilities."""
    scale = max((abs(value) for row in rows for value in row.values()), default=1.0)
    level = next((name for name in ("bfloat16", "float16") if on_grid(rows, name)), "float32")
    amount = LEAST[level] * EPS[level] * scale
    words = f"{LEAST[level]:.0f} roundings of {level}"
    return RowBudget(max_abs=amount, kl=amount**2 / 8, source=words)


def _quantile(values: list[float]) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(QUANTILE * len(ordered)))] if ordered else 0.0


def _middle(values: Mapping[str, float]) -> float:
    """The lower median: of two families one may have a fault."""
    return statistics.median_low(values.values()) if values else 0.0
