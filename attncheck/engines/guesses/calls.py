"""Faults in the attention calls, in the tokens and in the weights that an engine uses.

Axes: D head width, T positions, V vocabulary.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attncheck.attention.reference import params_of
from attncheck.core.errors import Unsupported
from attncheck.engines.engine import Ids
from attncheck.engines.guesses.guess import EngineGuess
from attncheck.engines.twin import Predicts, Twin, rounded_cache, with_calls, with_fault
from attncheck.faults.registry import advice, fault
from attncheck.model.compat import text_config

INJECTED = (
    "kv-groups-tiled",
    "window-ignored",
    "window-off-by-one",
    "mask-off-by-one",
    "sink-missing",
    "position-frozen",
)
ACAUSAL = ("causal-mask-missing",)
ROUNDED = (torch.bfloat16, torch.float8_e4m3fn)
ROTATED = ("q_proj", "k_proj")
NORMED = ("q_norm", "k_norm", "q_layernorm", "k_layernorm", "query_layernorm", "key_layernorm")


def call_guesses(twin: Twin) -> Iterator[EngineGuess]:
    """Faults of the catalogue that a forward without a cache can have, other scales, other ways of
    rotating, another head, other tokens, and rounded keys and values.
    """
    yield from _scales(twin)
    yield from _pairings(twin)
    for name in INJECTED:
        made = partial(with_fault, twin, fault(name))
        yield EngineGuess(fault=name, parameter="", made=made, advice=advice(name))
    for name in ACAUSAL:
        made = partial(with_fault, twin, fault(name))
        yield EngineGuess(fault=name, parameter="", made=made, advice=advice(name), by_prefix=True)
    yield from _tokens(twin)
    yield EngineGuess(
        fault="head-tied",
        parameter="the embedding table as output head",
        made=partial(_tied, twin),
        advice="Read `lm_head.weight`: `tie_word_embeddings` is false in this config.",
    )
    for dtype in ROUNDED:
        name = str(dtype).removeprefix("torch.")
        yield EngineGuess(
            fault="cache-low-precision",
            parameter=f"keys and values in {name}",
            made=partial(rounded_cache, twin, dtype),
            advice=advice("cache-low-precision"),
        )


def _scales(twin: Twin) -> Iterator[EngineGuess]:
    found: list[tuple[float, int]] = []

    def keep(call: Any) -> None:
        if not found:
            params = params_of(call, torch.ones(()))
            found.append((params.scale, call.query_BHTD.shape[-1]))

    try:
        twin.subject.record_calls(twin.subject.inputs.tokens, keep)
    except (Unsupported, RuntimeError):
        return
    scale, width = found[0] if found else (0.0, 1)
    usual = {1 / math.sqrt(width): "1/sqrt of the head width", 1.0: "no scale", scale**2: "twice"}
    for other, words in usual.items():
        if scale and not math.isclose(other, scale, rel_tol=1e-6):
            yield EngineGuess(
                fault="softmax-scale",
                parameter=f"{words}: {other:.4g} where the model has {scale:.4g}",
                made=partial(_scaled, twin, other / scale),
                advice=advice("softmax-scale"),
            )


def _scaled(twin: Twin, factor: float) -> Predicts:
    def handler(call: Any) -> Any:
        call.query_BHTD = call.query_BHTD * factor
        return call.run()

    return with_calls(twin, f"scale-{factor}", handler)


def _pairings(twin: Twin) -> Iterator[EngineGuess]:
    words = {
        "neighbouring channels rotate together, where the model rotates halves": _apart,
        "halves rotate together, where the model rotates neighbouring channels": _together,
    }
    for parameter, order in words.items():
        yield EngineGuess(
            fault="rope-pairing",
            parameter=parameter,
            made=partial(_reordered, twin, order),
            advice="Convert the query and key weights for the engine's way of rotating.",
        )


def _apart(width: int) -> Tensor:
    return torch.arange(width).view(-1, 2).T.flatten()


def _together(width: int) -> Tensor:
    return torch.arange(width).view(2, -1).T.flatten()


def _reordered(twin: Twin, order: Callable[[int], Tensor]) -> Predicts:
    """The twin with the channels of each head's queries and keys in another order."""
    config = text_config(twin.subject.model.config)
    width = twin.subject.facts.head_dim
    share = (getattr(config, "rope_parameters", None) or {}).get("partial_rotary_factor") or 1.0
    modules = dict(twin.subject.model.named_modules())
    names = [name for name in modules if name.rpartition(".")[2] in ROTATED]
    normed = any(name.rpartition(".")[2] in NORMED for name in modules)
    if not names or not width or normed:
        raise Unsupported("no projections of queries and keys alone")
    order_D = torch.arange(width)
    part = int(width * share)
    order_D[:part] = order(part)
    model = copy.deepcopy(twin.subject.model)
    for name in names:
        _reorder(model.get_submodule(name), order_D)
    return twin.changed(model)


def _reorder(projection: nn.Module, order_D: Tensor) -> None:
    for parameter in projection.parameters():
        heads = len(parameter) // len(order_D)
        rows = torch.cat([order_D + head * len(order_D) for head in range(heads)])
        parameter.data = parameter.data[rows]


def _tokens(twin: Twin) -> Iterator[EngineGuess]:
    config = text_config(twin.subject.model.config)
    for name in ("bos_token_id", "eos_token_id"):
        token = getattr(config, name, None)
        if isinstance(token, int) and 0 <= token < twin.subject.facts.vocab:
            yield EngineGuess(
                fault="token-added",
                parameter=f"token {token} (`{name}`) before the prompt",
                made=partial(_after, twin, token),
                advice="Switch off what the engine adds to prompts that are given as token ids.",
            )


def _after(twin: Twin, token: int) -> Predicts:
    def predict(ids: Ids) -> Tensor:
        return twin((token, *ids))[1:]

    return predict


def _tied(twin: Twin) -> Predicts:
    model = twin.subject.model
    table: Any = model.get_input_embeddings()  # type: ignore[operator]
    head: Any = model.get_output_embeddings()  # type: ignore[operator]
    if table is None or head is None or table.weight is head.weight:
        raise Unsupported("the head is the embedding table")
    if table.weight.shape != head.weight.shape or torch.equal(table.weight, head.weight):
        raise Unsupported("the head is the embedding table, or has another form")
    changed = copy.deepcopy(model)
    other: Any = changed.get_output_embeddings()  # type: ignore[operator]
    other.weight = nn.Parameter(table.weight.detach().clone(), requires_grad=False)
    return twin.changed(changed)
