"""Engines in this process: what all of them share, over one function that computes logits.

Axes: B batch, T new tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, final

import torch
from torch import Tensor

from attncheck.core.errors import TargetError, first_line
from attncheck.engines.engine import (
    EngineError,
    EngineReply,
    EngineRequest,
    EngineTraits,
    Ids,
    LogProbs,
    Together,
)

TRIED = 20
"""Tokens of the request that shows whether a runtime runs at all."""


class RuntimeModel(Protocol):
    """What a runtime's module has to offer."""

    def state(self) -> Any:
        """A new empty cache, or None where the runtime has none: every call is then a whole one."""

    def logits(self, rows: Sequence[Ids], state: Any) -> Tensor:
        """logits_BTV of new tokens after those in `state`, as a CPU tensor; rows of one length."""


@final
@dataclass(frozen=True)
class InProcessEngine:
    """An engine that is a function in this process."""

    name: str
    model: RuntimeModel
    traits: EngineTraits

    def ask(self, request: EngineRequest) -> EngineReply:
        """The answer to one request."""
        return self._answers((request,))[0]

    def ask_together(self, requests: Sequence[EngineRequest]) -> Together:
        """The answers to requests that are computed as one batch."""
        return Together(replies=self._answers(tuple(requests)), at_once=len(requests))

    def _answers(self, requests: Sequence[EngineRequest]) -> tuple[EngineReply, ...]:
        """Rows of one length, generated in step."""
        first = requests[0]
        with _one_line(self.name):
            state = self.model.state()
            scored_BTV = self._fed([each.ids for each in requests], first.chunks, state)
            rows: list[list[LogProbs]] = [[_row(each_TV[-1])] for each_TV in scored_BTV]
            made = [[_best(row[0])] for row in rows]
            for _ in range(first.steps - 1):
                fed = [
                    (one[-1],) if state is not None else (*each.ids, *one)
                    for each, one in zip(requests, made, strict=True)
                ]
                new_BTV = self.model.logits(fed, state).double().log_softmax(-1)
                for row, one, new_TV in zip(rows, made, new_BTV, strict=True):
                    row.append(_row(new_TV[-1]))
                    one.append(_best(row[-1]))
        return tuple(
            EngineReply(
                rows=tuple(row),
                generated=tuple(one),
                scored=tuple(_row(each_V) for each_V in all_TV) if each.score else (),
            )
            for each, row, one, all_TV in zip(requests, rows, made, scored_BTV, strict=True)
        )

    def _fed(self, rows: Sequence[Ids], chunks: tuple[int, ...], state: Any) -> Tensor:
        """log-probabilities_BTV of whole prompts, fed in chunks."""
        parts, start = [], 0
        for size in chunks or (len(rows[0]),):
            parts.append(self.model.logits([row[start : start + size] for row in rows], state))
            start += size
        return torch.cat(parts, 1).double().log_softmax(-1)


def tried_out(engine: InProcessEngine) -> InProcessEngine:
    """The engine, once it is known to run at all.

    Raises:
        TargetError: it does not, in one line.
    """
    try:
        engine.ask(EngineRequest(ids=engine.traits.sample(TRIED), steps=2))
    except EngineError as error:
        raise TargetError(str(error)) from error
    return engine


def _row(logprobs_V: Tensor) -> LogProbs:
    return dict(enumerate(logprobs_V.tolist()))


def _best(row: LogProbs) -> int:
    return max(row, key=lambda token: row[token])


@contextmanager
def _one_line(name: str) -> Any:
    try:
        yield
    except Exception as error:
        raise EngineError(f"{name}: the runtime raised {first_line(error)}") from error
