"""Servers with OpenAI's `/v1/completions`: vLLM with its own fields, others with what they answer.

Tokens come as ids where the server gives them (`token_id:12`, or an `id` beside the token), else as
texts, which stand for numbers of our own: rows can then be compared with each other only.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, final

from attncheck.engines.engine import (
    EngineError,
    EngineReply,
    EngineRequest,
    EngineTraits,
    Ids,
    LogProbs,
    Together,
)
from attncheck.engines.servers.client import ServerClient
from attncheck.engines.servers.server import at_once, entry, material_of, number_in

PATH = "/v1/completions"
TOKEN_ID = re.compile(r"token_id:(\d+)")
RUNNING = re.compile(r"^vllm:num_requests_running(?:\{[^}]*\})?\s+([0-9.e+]+)", re.MULTILINE)
DEPTHS = (64, 20, 5, 1)
OURS = 1 << 40
"""Texts of tokens stand for numbers from here on."""


@final
@dataclass
class CompletionsServer:
    """One server. `own` says that it knows vLLM's fields."""

    client: ServerClient
    model: str
    own: bool = False
    traits: EngineTraits = field(default_factory=EngineTraits)
    texts: dict[str, int] = field(default_factory=dict)
    salts: Iterator[int] = field(default_factory=itertools.count)

    @property
    def name(self) -> str:
        """Its URL."""
        return self.client.url

    def ask(self, request: EngineRequest) -> EngineReply:
        """The answer to one request."""
        return self._ask(request)

    def ask_together(self, requests: Sequence[EngineRequest]) -> Together:
        """The answers to requests that are sent at once."""
        return at_once(self._ask, requests, self._running)

    def _ask(self, request: EngineRequest, number: int = 0) -> EngineReply:
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": list(request.ids),
            "max_tokens": request.steps,
            "temperature": 0.0,
            "logprobs": self.traits.depth,
        }
        if self.own:
            salt = "attncheck" if request.reuse else f"attncheck-{next(self.salts)}"
            body |= {"cache_salt": salt, "return_tokens_as_token_ids": True, "ignore_eos": True}
            if request.score:
                body["prompt_logprobs"] = self.traits.depth
        elif request.score:
            body["echo"] = True
        answer = self.client.post(PATH, body)
        try:
            return self._read(answer, request)
        except (EngineError, TypeError, ValueError, AttributeError) as error:
            raise EngineError(f"{self.name}{PATH}: {error}") from error

    def _read(self, answer: Mapping[str, Any], request: EngineRequest) -> EngineReply:
        choice = entry(answer, "choices", 0)
        tokens, rows = self._listed(entry(choice, "logprobs"))
        scored: tuple[LogProbs, ...] = ()
        if request.score and self.own:
            found = entry(choice, "prompt_logprobs")
            scored = tuple(self._scored(each) for each in found[1:]) + rows[:1]
        elif request.score and len(rows) > request.steps:
            prompt = len(rows) - request.steps
            scored, rows, tokens = rows[1 : prompt + 1], rows[prompt:], tokens[prompt:]
        cached = number_in(answer, "usage", "prompt_tokens_details", "cached_tokens")
        return EngineReply(rows=rows, generated=tokens, cached=cached, scored=scored)

    def _listed(self, found: Any) -> tuple[Ids, tuple[LogProbs, ...]]:
        """The tokens and their rows, in either form of the answer."""
        if isinstance(found.get("content"), list):
            content = found["content"]
            rows = [
                {self._token(one): float(entry(one, "logprob")) for one in each["top_logprobs"]}
                for each in content
            ]
            return tuple(self._token(each) for each in content), tuple(rows)
        tokens = tuple(self._of_text(text) for text in entry(found, "tokens"))
        rows = [
            {self._of_text(text): float(value) for text, value in (each or {}).items()}
            for each in entry(found, "top_logprobs")
        ]
        return tokens, tuple(rows)

    def _token(self, found: Mapping[str, Any]) -> int:
        return found["id"] if isinstance(found.get("id"), int) else self._of_text(found["token"])

    def _of_text(self, text: str) -> int:
        match = TOKEN_ID.fullmatch(text)
        return int(match[1]) if match else self.texts.setdefault(text, OURS + len(self.texts))

    @staticmethod
    def _scored(found: Any) -> LogProbs:
        return {int(token): float(entry(each, "logprob")) for token, each in (found or {}).items()}

    def _running(self) -> int | None:
        if not self.own:
            return None
        found = RUNNING.search(str(self.client.get("/metrics")))
        return int(float(found[1])) if found else None


def open_server(
    client: ServerClient, model: str | None = None, own: bool | None = None
) -> CompletionsServer:
    """The server behind a client, with what it takes; `own` asks for vLLM's fields, None tries.

    Raises:
        EngineError: it does not answer as such a server.
    """
    models = client.get("/v1/models")
    listed = models.get("data") if isinstance(models, dict) else None
    if not listed:
        raise EngineError(f"{client.url}/v1/models: lists no model")
    chosen = model or str(entry(listed, 0, "id"))
    version = _version(client)
    own = bool(version) if own is None else own
    server = CompletionsServer(client, chosen, own)
    server.traits = EngineTraits(
        context=number_in(entry(listed, 0), "max_model_len"),
        together=4,
        material=material_of(lambda text: _tokens(client, chosen, text)),
        facts={"engine": f"vLLM {version}" if own else "OpenAI completions", "model": chosen},
    )
    return _tried(server)


def _version(client: ServerClient) -> str:
    with suppress(EngineError):
        found = client.get("/version")
        return str(found.get("version", "")) if isinstance(found, dict) else ""
    return ""


def _tokens(client: ServerClient, model: str, text: str) -> Any:
    body = {"model": model, "prompt": text, "add_special_tokens": False}
    return client.post("/tokenize", body).get("tokens")


def _tried(server: CompletionsServer) -> CompletionsServer:
    """The server, with what only trying tells: how many log-probabilities it gives, whether it
    scores prompts, whether it reuses them and says so.
    """
    ids, first = server.traits.sample(40), None
    for depth in DEPTHS:
        server.traits = replace(server.traits, depth=depth)
        try:
            first = server.ask(EngineRequest(ids=ids, reuse=True))
            break
        except EngineError as error:
            reason = error
    if first is None:
        raise reason
    if not first.rows or not first.rows[0]:
        raise EngineError(f"{server.name}{PATH}: no log-probabilities in the answer")
    again = server.ask(EngineRequest(ids=ids, reuse=True))
    scores = False
    with suppress(EngineError):
        scored = server.ask(EngineRequest(ids=ids, score=True)).scored
        scores = len(scored) == len(ids) and all(scored)
    tells = again.cached is not None
    server.traits = replace(
        server.traits,
        scores=scores,
        reuses=(again.cached or 0) > 0 or not tells,
        tells_reuse=tells,
        texts=any(token >= OURS for row in first.rows for token in row),
    )
    return server
