"""A proxy between the checks and an engine that injects one fault: a check that does not see it
proves nothing.

The faults are made of true answers to other questions, so that only their meaning is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, final

from attncheck.engines.engine import (
    Engine,
    EngineReply,
    EngineRequest,
    EngineTraits,
    Ids,
    Together,
)

Where = Literal["scoring", "decode", "chunks", "cache", "batch"]
FAULTS: dict[Where, str] = {
    "scoring": "label-shift",
    "decode": "cache-drops-token",
    "chunks": "cache-stale",
    "cache": "cache-drops-token",
    "batch": "rows-mixed",
}
"""The fault that is injected in each place."""


@final
@dataclass(frozen=True)
class InjectingEngine:
    """An engine with a fault in one place."""

    engine: Engine
    where: Where

    @property
    def name(self) -> str:
        """The name of the engine behind it."""
        return self.engine.name

    @property
    def traits(self) -> EngineTraits:
        """What the engine behind it takes."""
        return self.engine.traits

    def ask(self, request: EngineRequest) -> EngineReply:
        """The answer, with the fault where the request meets it."""
        return self._changed(request, self.engine.ask(request))

    def _changed(self, request: EngineRequest, reply: EngineReply) -> EngineReply:
        if self.where == "scoring" and request.score and not request.chunks:
            return replace(reply, scored=(*reply.scored[1:], reply.scored[-1]))
        if self.where == "chunks" and len(request.chunks) > 1:
            return self._restarted(request, reply)
        if self.where == "cache" and request.reuse and reply.cached != 0:
            return self._dropped(request, reply)
        if self.where == "decode" and request.steps > 1:
            return self._forgetful(request, reply)
        return reply

    def ask_together(self, requests: Sequence[EngineRequest]) -> Together:
        """The answers, each that of a neighbour where the fault is there."""
        found = self.engine.ask_together(requests)
        if self.where != "batch":
            pairs = zip(requests, found.replies, strict=True)
            return replace(found, replies=tuple(self._changed(*pair) for pair in pairs))
        return replace(found, replies=(*found.replies[1:], found.replies[0]))

    def _restarted(self, request: EngineRequest, reply: EngineReply) -> EngineReply:
        """Every chunk reads itself only."""
        rows: list[object] = []
        start = 0
        for size in request.chunks:
            ids = request.ids[start : start + size]
            rows += self.engine.ask(EngineRequest(ids=ids, score=True)).scored
            start += size
        return replace(reply, scored=tuple(rows))  # type: ignore[arg-type]

    def _dropped(self, request: EngineRequest, reply: EngineReply) -> EngineReply:
        """The last cached token is missing."""
        held = reply.cached or len(request.ids) // 2
        held = min(held, len(request.ids) - 1)
        ids = (*request.ids[: held - 1], *request.ids[held:])
        return replace(reply, rows=self._rows(ids, reply.generated))

    def _forgetful(self, request: EngineRequest, reply: EngineReply) -> EngineReply:
        """Every step after the first one misses the last token of the prompt."""
        rows = self._rows(request.ids[:-1], reply.generated)
        return replace(reply, rows=(reply.rows[0], *rows[1:]))

    def _rows(self, ids: Ids, generated: Ids) -> tuple[dict[int, float], ...]:
        asked = (EngineRequest(ids=(*ids, *generated[:at])) for at in range(len(generated)))
        return tuple(dict(self.engine.ask(each).rows[0]) for each in asked)
