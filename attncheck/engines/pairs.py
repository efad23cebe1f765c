"""What a check of an engine measures: rows that must be the same, with what led to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

from attncheck.core.measurement import Measurement, skipped
from attncheck.core.verdict import Verdict
from attncheck.engines.engine import Engine, EngineRequest, Ids, LogProbs
from attncheck.engines.rows import RowBudget, RowGap, row_gap, rows_case

Edit = tuple[str, str, Ids]
"""A fault, its parameter, and the token ids that a healthy engine would have to be given to answer
as one with this fault does.
"""


@final
@dataclass(frozen=True, kw_only=True)
class RowPair:
    """Rows of an engine asked in two ways. `edits[i]` are the faults that row i could have.
    `reason` says why nothing was compared.
    """

    name: str
    got: tuple[LogProbs, ...] = ()
    want: tuple[LogProbs, ...] = ()
    places: tuple[int, ...] = ()
    note: str = ""
    reason: str = ""
    broken: Verdict = Verdict.FAIL
    edits: tuple[tuple[Edit, ...], ...] = ()

    @property
    def gaps(self) -> list[RowGap]:
        """The difference of each row."""
        return [row_gap(got, want) for got, want in zip(self.got, self.want, strict=False)]

    def case(self, budget: RowBudget) -> Measurement:
        """The case under a budget."""
        if self.reason:
            return skipped(self.name, self.reason)
        return rows_case(
            self.name,
            self.got,
            self.want,
            budget,
            places=self.places,
            note=self.note,
            broken=self.broken,
        )


@final
@dataclass
class Asker:
    """Asks an engine, and remembers what it says to a prompt that nothing can have spoilt: alone,
    one token, nothing taken from earlier requests.
    """

    engine: Engine
    salt: int = 0
    known: dict[Ids, LogProbs] = field(default_factory=dict)

    def ids(self, length: int) -> Ids:
        """New token ids at each call, as many as the context has room for."""
        self.salt += 1
        context = self.engine.traits.context
        most = length if context is None else max(4, min(length, context // 2))
        return self.engine.traits.sample(most, self.salt)

    def fresh(self, ids: Ids) -> LogProbs:
        """The row after these ids."""
        if ids not in self.known:
            self.known[ids] = self.engine.ask(EngineRequest(ids=ids)).rows[0]
        return self.known[ids]

    def chain(self, ids: Ids, generated: Sequence[int]) -> tuple[LogProbs, ...]:
        """The row before each of these generated tokens, each by a fresh prefill."""
        return tuple(
            self.fresh((*ids, *generated[:count])) for count in range(max(1, len(generated)))
        )
