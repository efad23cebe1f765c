"""An engine against transformers on the same weights, named by prediction.

Axes: T positions, V vocabulary.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

from attncheck.core.errors import Unsupported
from attncheck.core.finding import Control, Diagnosis, Finding
from attncheck.core.measurement import Measurement, verdict_of
from attncheck.core.verdict import Verdict
from attncheck.engines.engine import Engine, EngineRequest, Ids, LogProbs
from attncheck.engines.findings import engine_finding
from attncheck.engines.fitting import (
    JOINED,
    REFUSALS,
    Answered,
    FittedGuess,
    every_guess,
    fitted,
    fitted_bases,
    joined,
    named,
    next_best,
)
from attncheck.engines.rows import RowBudget, rows_case
from attncheck.engines.twin import LEVELS, Twin, noise_of, rows_like

NAME = "engine-weights"
LENGTH = 48
ROWS = 24
"""Prompts that are asked one by one of an engine that does not score a prompt."""
GRIDS = {"float16": 2.0**-12, "bfloat16": 2.0**-9}
"""Logits above a quarter lie on multiples of these in the two half precisions."""
ON_GRID = 2e-5
ON_TOP = 8
"""Best tokens of a row whose logits are large enough to lie on these grids."""
HIDDEN_SHOWN = 6
MOVES = 1e-9
NO_FAULT = "No known fault gives these log-probabilities on the same weights."


@final
@dataclass(frozen=True, kw_only=True)
class RowDecision:
    """One comparison: its case, the rounding that it was judged by, the guesses that were tried,
    the nearest first, and the one that explains it.
    """

    case: Measurement
    budget: RowBudget
    level: str
    tried: tuple[FittedGuess, ...] = ()
    best: FittedGuess | None = None


@final
@dataclass(frozen=True)
class AgainstWeights:
    """The comparison of one engine with its twin. `rounding` is the dtype that the user says the
    engine computes in, None where it has to show.
    """

    engine: Engine
    twin: Twin
    rounding: str | None = None

    def examined(self) -> tuple[Finding, RowBudget]:
        """The verdict with what explains it, and what rounding does to this engine."""
        started = time.perf_counter()
        answers = [self.answered(length) for length in self._lengths]
        decisions = [self.decided(answered) for answered in answers]
        failed = [each for each in decisions if verdict_of(each.case) is Verdict.FAIL]
        control = None if failed else self._control(answers[0], decisions[0])
        finding = replace(
            engine_finding(NAME, [each.case for each in decisions], [control]),
            diagnosis=_diagnosis(failed[0]) if failed else None,
            replay={"tokens": list(answers[0].ids)},
            seconds=time.perf_counter() - started,
        )
        return finding, decisions[0].budget

    @property
    def _lengths(self) -> list[int]:
        """The usual length, and one past the longest window or rotary border within reach."""
        inputs, context = self.twin.subject.inputs, self.engine.traits.context or 1 << 20
        most = min(context - 4, max(inputs.room, inputs.length))
        longest = inputs.length if inputs.length > LENGTH else LENGTH
        return sorted({min(LENGTH, most), min(longest, most)})

    def ids(self, length: int) -> Ids:
        """Token ids of the twin's own inputs, `length` of them."""
        inputs = self.twin.subject.inputs
        row = inputs.row
        for salt in range(length // max(1, len(row)) + 1):
            row = (*row, *inputs.other(inputs.row, salt=salt + 5))
        return tuple(row[:length])

    def answered(self, length: int) -> Answered:
        """What the engine says after every prefix of some ids, or after `ROWS` of them."""
        ids = self.ids(length)
        if self.engine.traits.scores:
            reply = self.engine.ask(EngineRequest(ids=ids, score=True))
            ends = tuple(end for end, row in enumerate(reply.scored, 1) if row)
            return Answered(ids, ends, tuple(row for row in reply.scored if row))
        ends = tuple(range(length, 0, -max(1, length // ROWS)))[::-1]
        rows = [self.engine.ask(EngineRequest(ids=ids[:end])).rows[0] for end in ends]
        return Answered(ids, ends, tuple(rows))

    def decided(self, answered: Answered) -> RowDecision:
        """Judge what an engine answered.

        A coarser rounding than that of float32 is taken only where the user or the rows themselves
        say that the engine computes so, and where no fault fits better.
        """
        finest = noise_of(self.twin, LEVELS[0], answered.ids, answered.ends, answered.rows)
        case = self._case(answered, finest, LEVELS[0])
        if verdict_of(case) is not Verdict.FAIL:
            return RowDecision(case=case, budget=finest, level=LEVELS[0])
        gap, _ = answered.gaps(self.twin)
        allowed = finest.max_abs * self._larger(answered)
        level = self._coarser(answered)
        coarse = self._noise(level, answered) if level else None
        known = coarse is not None and level != LEVELS[1]
        tried = self._searched(answered, coarse.max_abs if coarse and known else allowed)
        exact = named(tried, allowed, gap)
        coarse = coarse if exact is None else None
        if coarse is None:
            return RowDecision(
                case=case, budget=finest, level=LEVELS[0], tried=tuple(tried), best=exact
            )
        rough = self._case(answered, coarse, level)
        if verdict_of(rough) is Verdict.PASS:
            rough = replace(rough, note=self._hidden(answered, coarse, level))
            return RowDecision(case=rough, budget=coarse, level=level)
        best = named(tried, coarse.max_abs, gap)
        shown = (case, finest, LEVELS[0]) if best is None else (rough, coarse, level)
        case, budget, level = shown
        return RowDecision(case=case, budget=budget, level=level, tried=tuple(tried), best=best)

    def _noise(self, level: str, answered: Answered) -> RowBudget | None:
        try:
            return noise_of(self.twin, level, answered.ids, answered.ends, answered.rows)
        except Unsupported:
            return None

    def _coarser(self, answered: Answered) -> str:
        """The rounding beyond float32 that this engine may have; empty where it has none."""
        if self.rounding is not None:
            return "" if self.rounding == LEVELS[0] else self.rounding
        grid = next((name for name in reversed(GRIDS) if on_grid(answered.rows, name)), None)
        return grid or LEVELS[1]

    def _larger(self, answered: Answered) -> float:
        """How many times larger the engine's log-probabilities are than the right ones, and so is
        the rounding of a model that gives them.
        """
        right = rows_like(self.twin(answered.ids), answered.rows, answered.ends)
        got, want = (
            max(abs(value) for row in rows for value in row.values() if math.isfinite(value))
            for rows in (answered.rows, right)
        )
        return max(1.0, got / want)

    def _searched(self, answered: Answered, allowed: float) -> list[FittedGuess]:
        found = fitted(answered, every_guess(self.twin))
        if not found or found[0].residual > allowed:
            found += fitted_bases(self.twin, answered)
        found.sort(key=lambda each: each.residual)
        for most in (JOINED, 2):
            if not found or found[0].residual <= allowed:
                break
            found = sorted([*found, *joined(answered, found, most)], key=lambda each: each.residual)
        return found

    def _case(self, answered: Answered, budget: RowBudget, level: str) -> Measurement:
        want = rows_like(self.twin(answered.ids), answered.rows, answered.ends)
        name = f"{len(answered.ids)} tokens against transformers in float64"
        note = "" if level == LEVELS[0] else f"judged as {level}"
        return rows_case(name, answered.rows, want, budget, places=answered.ends, note=note)

    def _hidden(self, answered: Answered, budget: RowBudget, level: str) -> str:
        """Which faults would be too small to see at this level of rounding."""
        truth = self.twin(answered.ids)
        right = replace(answered, rows=tuple(rows_like(truth, answered.rows, answered.ends)))
        faults = fitted(right, every_guess(self.twin))
        small = [each.guess.label for each in faults if MOVES < each.kl <= budget.kl]
        shown = ", ".join(small[:HIDDEN_SHOWN]) + (" and more" if small[HIDDEN_SHOWN:] else "")
        words = f"judged as {level}"
        return f"{words}; too small to see below it: {shown}" if small else words

    def _control(self, answered: Answered, decision: RowDecision) -> Control | None:
        """The first fault that moves the log-probabilities, in place of what the engine said."""
        for guess in every_guess(self.twin):
            try:
                wrong_TV = guess.made()(answered.ids)
            except REFUSALS:
                continue
            rows = tuple(rows_like(wrong_TV, answered.rows, answered.ends))
            faulty = replace(answered, rows=rows)
            gap, kl = faulty.gaps(self.twin)
            if not math.isfinite(gap) or kl <= MOVES or guess.by_prefix:
                continue
            case = self._case(faulty, decision.budget, decision.level)
            seen = verdict_of(case) is Verdict.FAIL
            return Control(fault=guess.fault, detected=seen, max_abs=gap, case=case.name)
        return None


def _diagnosis(decision: RowDecision) -> Diagnosis:
    if not decision.tried:
        return Diagnosis(fault="", how="unexplained", advice=NO_FAULT)
    best, near = decision.best, decision.tried[0]
    other = near if best is None else next_best(decision.tried, best)
    runner = {"fault": other.guess.label, "residual": other.residual} if other else None
    if best is None:
        return Diagnosis(fault="", how="unexplained", advice=NO_FAULT, runner_up=runner)
    parameter, text = best.guess.parameter, best.guess.advice
    begin = f"{parameter[0].upper()}{parameter[1:]}. " if parameter else ""
    return Diagnosis(
        fault=best.guess.fault,
        how="reproduced",
        residual=best.residual,
        runner_up=runner,
        advice=f"{begin}{text}".strip(),
    )


def on_grid(rows: Sequence[LogProbs], dtype: str) -> bool:
    """Whether log-probabilities differ by multiples of what this dtype resolves: so they do where
    an engine rounds its logits.
    """
    step, seen = GRIDS[dtype], 0
    for row in rows:
        best, *others = sorted(row.values(), reverse=True)[:ON_TOP] or [0.0]
        for value in others:
            if abs(math.remainder(best - value, step)) > ON_GRID:
                return False
            seen += value != best
    return seen > 0
