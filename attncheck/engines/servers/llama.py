"""llama.cpp's server, by `/completion`: token ids, the whole vocabulary of each generated token.

It gives no log-probabilities of a prompt (`echo` is ignored), so that a prompt is scored by one
fresh prefill for each prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

from attncheck.engines.engine import (
    EngineError,
    EngineReply,
    EngineRequest,
    EngineTraits,
    LogProbs,
    Together,
)
from attncheck.engines.servers.client import ServerClient
from attncheck.engines.servers.server import at_once, entry, material_of, number_in

SMALL = 1024
"""Vocabularies up to this size are asked for whole."""
DEPTH = 64


@final
@dataclass
class LlamaServer:
    """One llama.cpp server."""

    client: ServerClient
    traits: EngineTraits = field(default_factory=EngineTraits)

    @property
    def name(self) -> str:
        """Its URL."""
        return self.client.url

    def ask(self, request: EngineRequest) -> EngineReply:
        """The answer to one request, always in the same slot."""
        return self._ask(request, 0)

    def ask_together(self, requests: Sequence[EngineRequest]) -> Together:
        """The answers to requests in slots of their own."""
        return at_once(self._ask, requests, self._running)

    def _ask(self, request: EngineRequest, number: int) -> EngineReply:
        body = {
            "prompt": list(request.ids),
            "n_predict": request.steps,
            "n_probs": self.traits.depth,
            "cache_prompt": request.reuse,
            "id_slot": number % max(1, self.traits.together),
            "temperature": 0.0,
            "samplers": ["temperature"],
            "ignore_eos": True,
            "stream": False,
        }
        answer = self.client.post("/completion", body)
        try:
            found = entry(answer, "completion_probabilities")
            rows = tuple(_row(each) for each in found)
            made = tuple(int(entry(each, "id")) for each in found)
        except (EngineError, TypeError, ValueError) as error:
            raise EngineError(f"{self.name}/completion: {error}") from error
        return EngineReply(
            rows=rows, generated=made, cached=number_in(answer, "timings", "cache_n")
        )

    def _running(self) -> int | None:
        slots = self.client.get("/slots")
        if not isinstance(slots, list):
            return None
        return sum(bool(each.get("is_processing")) for each in slots if isinstance(each, dict))


def _row(found: Any) -> LogProbs:
    return {
        int(entry(each, "id")): float(entry(each, "logprob"))
        for each in entry(found, "top_logprobs")
    }


def open_server(client: ServerClient, model: str | None = None) -> LlamaServer:
    """The server behind a client, with what it takes.

    Raises:
        EngineError: it is no llama.cpp server.
    """
    props = client.get("/props")
    slots = number_in(props, "total_slots") if isinstance(props, dict) else None
    if slots is None:
        raise EngineError(f"{client.url}/props: not what llama.cpp's server says there")
    models = client.get("/v1/models")
    vocab = None
    if isinstance(models, dict) and models.get("data"):
        vocab = number_in(entry(models, "data", 0), "meta", "n_vocab")
    traits = EngineTraits(
        together=slots,
        vocab=vocab,
        context=number_in(props, "default_generation_settings", "n_ctx"),
        depth=vocab if vocab and vocab <= SMALL else DEPTH,
        material=material_of(
            lambda text: client.post("/tokenize", {"content": text}).get("tokens")
        ),
        facts={"engine": "llama.cpp server", "weights": str(props.get("model_ftype") or "")},
    )
    return _tried(LlamaServer(client, traits))


def _tried(server: LlamaServer) -> LlamaServer:
    """The server, with what only trying tells: whether it reuses prompts and says so."""
    ids = server.traits.sample(16)
    first, again = (server.ask(EngineRequest(ids=ids, reuse=True)) for _ in range(2))
    if not first.rows or not first.rows[0]:
        raise EngineError(f"{server.name}/completion: no log-probabilities in the answer")
    reuses = again.cached is None or again.cached > 0
    tells = again.cached is not None
    return replace(server, traits=replace(server.traits, reuses=reuses, tells_reuse=tells))
