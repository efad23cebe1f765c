"""What the config says about a model, read once, under the many names that configs use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from torch import nn

from attncheck.model.compat import text_config

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads")
CONTEXT = (
    "max_position_embeddings",
    "n_positions",
    "n_ctx",
    "max_seq_len",
    "max_target_positions",
    "seq_length",
)
WINDOWS = (
    "sliding_window",
    "attention_window_size",
    "window_size",
    "local_attention_window_len",
    "sliding_window_size",
)
CHUNKS = ("attention_chunk_size", "mamba_chunk_size", "chunk_size", "index_topk")
SWITCHES = ("original_max_position_embeddings",)


@final
@dataclass(frozen=True, kw_only=True)
class Boundary:
    """A length at which the model changes what it does: a window, a chunk, a rotary switch."""

    kind: str
    length: int


@final
@dataclass(frozen=True, kw_only=True)
class Facts:
    """The `model` block of the report, and the borders that inputs must cross."""

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

    def as_dict(self) -> dict[str, Any]:
        """The JSON of the contract."""
        return {
            "class": self.class_name,
            "model_type": self.model_type,
            "parameters": self.parameters,
            "layers": self.layers,
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "window": self.window,
            "vocab": self.vocab,
        }


def first_int(config: Any, names: tuple[str, ...]) -> int | None:
    """The first of some config fields that holds a positive integer."""
    values = (getattr(config, name, None) for name in names)
    return next(
        (v for v in values if isinstance(v, int) and not isinstance(v, bool) and v > 0), None
    )


def _rope_tables(config: Any) -> list[dict[str, Any]]:
    found = [getattr(config, name, None) for name in ("rope_parameters", "rope_scaling")]
    tables = [table for table in found if isinstance(table, dict)]
    return tables + [
        nested for table in tables for nested in table.values() if isinstance(nested, dict)
    ]


def _switches(config: Any, context: int | None) -> list[int]:
    """Lengths at which rotary scaling changes: where the trained length ends, for the schemes that
    look at the length.
    """
    lengths = [table.get(name) for table in _rope_tables(config) for name in SWITCHES] + [
        getattr(config, name, None) for name in SWITCHES
    ]
    kinds = {table.get("rope_type", table.get("type")) for table in _rope_tables(config)}
    if "dynamic" in kinds:
        lengths.append(context)
    return [length for length in lengths if isinstance(length, int) and length > 0]


def borders_of(config: Any, context: int | None) -> tuple[Boundary, ...]:
    """Every length at which this config changes what the model does, shortest first."""
    found = {
        Boundary(kind=kind, length=value)
        for kind, names in (("window", WINDOWS), ("chunk", CHUNKS))
        for name in names
        if (value := first_int(config, (name,))) is not None
    }
    found |= {Boundary(kind="rope switch", length=length) for length in _switches(config, context)}
    return tuple(sorted(found, key=lambda boundary: (boundary.length, boundary.kind)))


def reads_ahead(config: Any) -> str | None:
    """Why a model that can generate reads later tokens by design, as its config says it; None where
    it promises not to.
    """
    said = {
        name: getattr(config, name, None)
        for name in ("causal", "is_causal", "attn_type", "attn_layers", "prompt_types")
    }
    if said["causal"] is False or said["is_causal"] is False:
        return "the config says that the model is not causal"
    if said["attn_type"] == "bi":
        return "the config says `attn_type: bi`: attention goes both ways"
    if "lsh" in (said["attn_layers"] or ()):
        return (
            "the config has hashing attention: which tokens share a bucket depends on all of them"
        )
    if said["prompt_types"]:
        return "the config has prompt types: everything that is given at once is a prefix, read both ways"
    return None


def _vocabulary(model: nn.Module, config: Any) -> int:
    """Ids that the input embedding holds and the config counts as tokens: either may be larger than
    the other.
    """
    embedding = getattr(model, "get_input_embeddings", lambda: None)()
    rows = (
        getattr(embedding, "num_embeddings", None)
        or getattr(getattr(embedding, "weight", None), "shape", [None])[0]
    )
    promised = first_int(config, ("vocab_size",))
    return int(min(rows or promised or 0, promised or rows or 0))


def read_facts(model: nn.Module) -> Facts:
    """Read the facts of a loaded model from its config and its modules."""
    config = text_config(getattr(model, "config", None))
    heads = first_int(config, HEADS)
    hidden = first_int(config, ("hidden_size", "n_embd", "d_model"))
    context = first_int(config, CONTEXT)
    boundaries = borders_of(config, context)
    return Facts(
        class_name=type(model).__name__,
        model_type=str(getattr(config, "model_type", type(model).__name__)),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        layers=first_int(config, LAYERS),
        heads=heads,
        kv_heads=first_int(config, ("num_key_value_heads", "num_kv_heads")) or heads,
        head_dim=first_int(config, ("head_dim",))
        or (hidden // heads if hidden and heads else None),
        window=next(
            (boundary.length for boundary in boundaries if boundary.kind == "window"), None
        ),
        vocab=_vocabulary(model, config),
        context=context,
        boundaries=boundaries,
    )
