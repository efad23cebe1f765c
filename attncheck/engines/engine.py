"""What every engine is asked: the log-probabilities of the next token, for given token ids.

An adapter is an `Engine`: one class that turns an `EngineRequest` into a call of a server or of a
runtime. What it can do is in its `EngineTraits`, which its opener finds out by trying.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, final

from attncheck.core.errors import AttncheckError

LogProbs = Mapping[int, float]
"""Log-probabilities in nats by token id, of the best tokens or of the whole vocabulary."""
Ids = tuple[int, ...]
ASSUMED_VOCAB = 128
"""Ids below are taken for known where an engine does not say how many it has."""
SPECIAL = 10
"""Ids below are not drawn: most vocabularies begin with special tokens."""


class EngineError(AttncheckError):
    """An engine that did not answer, or whose answer cannot be read; one line that quotes it."""


class EngineGone(EngineError):
    """An engine that answers nothing any more: to ask it further questions is of no use."""


@final
@dataclass(frozen=True, kw_only=True)
class EngineTraits:
    """What an engine takes, found out by trying.

    `scores`: it gives the log-probabilities after every token of a prompt. `reuses`: it keeps the
    keys and values of earlier prompts, switched on and off for each request; `tells_reuse` says
    that it tells how many tokens came from there. `together` is how many sequences it computes at
    once. `cuts`: a prompt can be given in chunks. `vocab` and `context` are None where unknown;
    `depth` is how many log-probabilities it gives at most. `texts` says that it names tokens by
    text, so that no id is known. `material` are token ids to ask with. `facts` are shown in the
    report.
    """

    scores: bool = False
    reuses: bool = False
    tells_reuse: bool = False
    together: int = 1
    cuts: bool = False
    vocab: int | None = None
    context: int | None = None
    depth: int = 64
    texts: bool = False
    material: Ids = ()
    facts: Mapping[str, str] = field(default_factory=dict)

    def sample(self, length: int, salt: int = 0) -> Ids:
        """Token ids to ask with: the material, turned by `salt`, else drawn from the vocabulary."""
        draw = random.Random(salt)
        if self.material:
            start = draw.randrange(len(self.material)) if salt else 0
            turned = self.material[start:] + self.material[:start]
            return (turned * (length // len(turned) + 1))[:length]
        last = (self.vocab or ASSUMED_VOCAB) - 1
        first = min(SPECIAL, last // 2)
        return tuple(draw.randint(first, last) for _ in range(length))


@final
@dataclass(frozen=True, kw_only=True)
class EngineRequest:
    """One question. `steps` tokens are generated greedily after `ids`; `reuse` lets the engine take
    keys and values of earlier requests; `score` asks for the log-probabilities after every token;
    `chunks` are the lengths in which the prompt is fed, one after the other.
    """

    ids: Ids
    steps: int = 1
    reuse: bool = False
    score: bool = False
    chunks: tuple[int, ...] = ()


@final
@dataclass(frozen=True, kw_only=True)
class EngineReply:
    """The answer: `rows[i]` are the log-probabilities before `generated[i]`, `scored[t]` those
    after `ids[: t + 1]`. `cached` is how many tokens came from earlier requests, None where it is
    not known.
    """

    rows: tuple[LogProbs, ...]
    generated: Ids
    cached: int | None = None
    scored: tuple[LogProbs, ...] = ()


@final
@dataclass(frozen=True, kw_only=True)
class Together:
    """Answers to requests that were sent at once, and how many of them the engine said to compute
    at the same time (None where it does not say).
    """

    replies: tuple[EngineReply, ...]
    at_once: int | None = None


class Engine(Protocol):
    """An adapter. Every method raises `EngineError` in one line."""

    @property
    def name(self) -> str:
        """What the user called it."""

    @property
    def traits(self) -> EngineTraits:
        """What it takes."""

    def ask(self, request: EngineRequest) -> EngineReply:
        """The answer to one request."""

    def ask_together(self, requests: Sequence[EngineRequest]) -> Together:
        """The answers to requests that are under way at the same time."""


@final
@dataclass(frozen=True, kw_only=True)
class EngineLimits:
    """What an engine may be asked: `requests` in all, `rate` a second (0: no limit), `patience`
    seconds for one answer, `retries` of an answer that says to come later.
    """

    requests: int = 2000
    rate: int = 0
    patience: int = 60
    retries: int = 3
