"""What the config says about a model, under the many names that configs use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import nn

from attncheck.model.compat import config_fields, config_of, text_config
from attncheck.model.embeddings import position_rows, token_table
from attncheck.model.signature import parameters_of

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads")
HIDDEN = ("hidden_size", "n_embd", "d_model")
CONTEXT = (
    "max_position_embeddings",
    "n_positions",
    "n_ctx",
    "max_seq_len",
    "max_target_positions",
    "seq_length",
    "context_length",
    "max_seq_length",
)
BLOCK = "block_size"
"""How far positions go, or how long a block of sparse attention is: trying tells."""
WINDOWS = (
    "sliding_window",
    "attention_window_size",
    "window_size",
    "local_attention_window_len",
    "sliding_window_size",
)
CHUNKS = ("attention_chunk_size", "mamba_chunk_size", "chunk_size", "index_topk")
SWITCH = "original_max_position_embeddings"
ROPE_SWITCH = "rope switch"
FOUND = "attncheck_boundaries"
"""Where a model that was built from a config keeps the lengths that trying it has found."""


@final
@dataclass(frozen=True, kw_only=True)
class Boundary:
    """A length at which the model changes what it does: a window, a chunk, a rotary switch."""

    kind: str
    length: int


@final
@dataclass(frozen=True, kw_only=True)
class Facts:
    """The `model` block of the report, and the boundaries that inputs must cross."""

    class_name: str
    model_type: str
    parameters: int
    layers: int | None
    heads: int | None
    kv_heads: int | None
    head_dim: int | None
    window: int | None
    vocab: int
    context: int | None
    boundaries: tuple[Boundary, ...]
    codebooks: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """The JSON of the contract."""
        names = ("model_type", "parameters", "layers", "heads", "kv_heads", "window", "vocab")
        return {"class": self.class_name, **{name: getattr(self, name) for name in names}}


def read_facts(model: nn.Module) -> Facts:
    """Read the facts of a loaded model from its config and its modules."""
    config = text_config(config_of(model))
    heads = first_int(config, HEADS)
    context = first_int(config, CONTEXT) or position_rows(model) or _block_as_context(model, config)
    boundaries = boundaries_of(config, context, getattr(model, FOUND, ()))
    return Facts(
        class_name=type(model).__name__,
        model_type=str(getattr(config, "model_type", type(model).__name__)),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        layers=first_int(config, LAYERS),
        heads=heads,
        kv_heads=first_int(config, ("num_key_value_heads", "num_kv_heads")) or heads,
        head_dim=head_width(config),
        window=next((each.length for each in boundaries if each.kind == "window"), None),
        vocab=_vocabulary(model, config),
        context=context,
        boundaries=boundaries,
        codebooks=first_int(config, ("num_codebooks",)),
    )


def _block_as_context(model: nn.Module, config: Any) -> int | None:
    """The length of a block where a longer row is refused, else no limit that is stated."""
    block = first_int(config, (BLOCK,))
    if block is None:
        return None
    try:
        with torch.no_grad():
            model(torch.zeros(1, block + 1, dtype=torch.int64))
    except Exception:
        return block
    return None


def head_width(config: Any) -> int | None:
    """D: how wide one head is."""
    heads, hidden = first_int(config, HEADS), first_int(config, HIDDEN)
    own = first_int(config, ("head_dim",))
    return own or (hidden // heads if hidden and heads else None)


def configs_in(config: Any) -> Iterator[Any]:
    """A config and all configs in it."""
    yield config
    for value in config_fields(config).values():
        if hasattr(value, "model_type"):
            yield from configs_in(value)


def first_int(config: Any, names: tuple[str, ...]) -> int | None:
    """The first of some config fields that holds a positive integer."""
    values = (getattr(config, name, None) for name in names)
    return next(
        (v for v in values if isinstance(v, int) and not isinstance(v, bool) and v > 0), None
    )


def boundaries_of(
    config: Any, context: int | None, tried: tuple[Boundary, ...] = ()
) -> tuple[Boundary, ...]:
    """Every length at which this config changes what the model does, shortest first; `tried` were
    found by trying.
    """
    found = {
        Boundary(kind=kind, length=value)
        for kind, names in (("window", WINDOWS), ("chunk", CHUNKS))
        for name in names
        if (value := first_int(config, (name,))) is not None
    }
    block = first_int(config, (BLOCK,))
    if block is not None and block < (context or 0):
        found.add(Boundary(kind="chunk", length=block))
    found |= {Boundary(kind=ROPE_SWITCH, length=length) for length in _switches(config, context)}
    found |= set(tried)
    return tuple(sorted(found, key=lambda boundary: (boundary.length, boundary.kind)))


def _switches(config: Any, context: int | None) -> list[int]:
    """Lengths at which rotary scaling changes: where the trained length ends, for the schemes that
    depend on the length.
    """
    read = (getattr(config, name, None) for name in ("rope_parameters", "rope_scaling"))
    tables = [table for table in read if isinstance(table, dict)]
    tables += [each for table in tables for each in table.values() if isinstance(each, dict)]
    lengths = [*(table.get(SWITCH) for table in tables), getattr(config, SWITCH, None)]
    if any(table.get("rope_type", table.get("type")) == "dynamic" for table in tables):
        lengths.append(context)
    return [length for length in lengths if isinstance(length, int) and length > 0]


def _vocabulary(model: nn.Module, config: Any) -> int:
    """Ids that the input embedding holds and the config counts as tokens: either may be larger."""
    embedding = token_table(model)
    rows = (
        getattr(embedding, "num_embeddings", None)
        or getattr(getattr(embedding, "weight", None), "shape", [None])[0]
    )
    known = [int(each) for each in (rows, first_int(config, ("vocab_size",))) if each]
    return min(known) if known else width_of_logits(model)


def width_of_logits(model: nn.Module) -> int:
    """How many logits a model that keeps its embedding in a plain parameter returns; 0 if it cannot
    be called with ids alone.
    """
    ids_BT = torch.zeros(1, 2, dtype=torch.int64)
    decoder = {"decoder_input_ids": ids_BT} if "decoder_input_ids" in parameters_of(model) else {}
    try:
        with torch.no_grad():
            output = model(ids_BT, **decoder)
    except Exception:
        return 0
    logits = getattr(output, "logits", output)
    is_logits = isinstance(logits, torch.Tensor) and logits.ndim == 3
    return int(logits.shape[-1]) if is_logits else 0
