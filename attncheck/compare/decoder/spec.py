"""What a decoder computes, as parameters: every part of it can be replaced by another value.

All tensors are float64. A weight maps C channels to R: (R, C).

Axes: R rows, C columns, P pairs of channels, V vocabulary, M positions of a table, E experts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, final

from torch import Tensor

from attncheck.attention.rope import Pairing

NormKind = Literal["rms", "layer"]
EVERYTHING = 1 << 20
"""How many later tokens a query reads where there is no causal mask."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Projection:
    """A weight (R, C) with its bias (R,), and the module that holds them."""

    weight: Tensor
    bias: Tensor | None = None
    module: str = ""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class NormSpec:
    """A norm over the last axis, applied so many `times`: the scale is `offset + weight`; `outside`
    adds eps after the root.
    """

    kind: NormKind
    eps: float
    weight: Tensor | None = None
    bias: Tensor | None = None
    offset: float = 0.0
    outside: bool = False
    times: int = 1
    module: str = ""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class RotarySpec:
    """Speeds inv_freq_P of 2P channels, and how they rotate queries and keys.

    `gain` multiplies cosines and sines; `query_offset` and `key_offset` are added to positions;
    `after_norm` rotates after the query and key norms, `start` is the first channel that rotates.
    `scheme` holds the config's numbers, where they give these speeds.
    """

    inv_freq_P: Tensor
    pairing: Pairing = "half"
    gain: float = 1.0
    direction: int = 1
    query_offset: int = 0
    key_offset: int = 0
    on_query: bool = True
    on_key: bool = True
    on_value: bool = False
    times: int = 1
    after_norm: bool = True
    start: int = 0
    scheme: dict[str, Any] | None = None

    @property
    def width(self) -> int:
        """How many channels of a head rotate."""
        return 2 * len(self.inv_freq_P)


Weights = dict[str, Tensor]
Visit = Callable[[str, Tensor], None]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class OpaquePart:
    """A part that is run rather than written out: the reference's own `module`, with `weights` in
    place of some of its own; `run` takes its input, these weights and a visit of inner values.
    """

    run: Callable[[Tensor, Weights, Visit], Tensor]
    own: Weights
    module: str
    weights: Weights


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Latent:
    """A narrow state that queries, or keys and values, are computed from."""

    down: Projection
    norm: NormSpec | None = None


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionSpec:
    """One layer's attention. `whole_norm` norms all heads of a token together; `tiled` lets query
    head h read key head h mod G instead of h // (H / G); `unmoved` flattens heads without moving
    their axis; `reach` is how many keys behind itself a query reads, None for all, and `ahead` how
    many after itself. With a `query_latent` or `key_latent`, queries or keys and values come from
    that; `shared_key` gives channels behind those of `key` that all heads share. Values are
    `value_width` wide where that is not `width`. `slopes` (H,) times the distance to a key are
    subtracted from its score.
    """

    query: Projection
    key: Projection
    value: Projection
    output: Projection
    heads: int
    groups: int
    width: int
    scale: float
    query_norm: NormSpec | None = None
    key_norm: NormSpec | None = None
    whole_norm: bool = False
    rotary: RotarySpec | None = None
    cap: float | None = None
    reach: int | None = None
    ahead: int = 0
    sinks: Tensor | None = None
    sink_sign: float = 1.0
    tiled: bool = False
    unmoved: bool = False
    query_latent: Latent | None = None
    key_latent: Latent | None = None
    shared_key: Projection | None = None
    value_width: int | None = None
    first_layer: str = ""
    slopes: Tensor | None = None
    opaque: OpaquePart | None = None
    module: str = ""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class MlpSpec:
    """A plain or gated feed-forward block; `gate` is None in a plain one. With a `limit`, the gate
    goes no higher and the up values no further from zero; `up_offset` is added to them
    behind their own `up_activation`.
    """

    up: Projection
    down: Projection
    activation: str
    gate: Projection | None = None
    activated: Literal["gate", "up"] = "gate"
    limit: float | None = None
    up_offset: float = 0.0
    up_activation: str = "no activation"
    opaque: OpaquePart | None = None
    module: str = ""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class ExpertsSpec:
    """Routed blocks: scores of the router, softmax before or after the top k, and what the chosen
    weights are divided by.

    `correction` is added to the scores that experts are chosen by (`weighted` also to their
    weights). Of `groups` of experts only `kept` may be chosen from, those with the largest sums of
    `best` scores; experts of other groups get the score `left_out`. `shared` runs for every token,
    times the sigmoid of `shared_gate` where that is.
    """

    router: Projection
    experts: tuple[MlpSpec, ...]
    count: int
    order: Literal["softmax first", "top-k first", "sigmoid"] = "softmax first"
    normalised: bool = True
    gain: float = 1.0
    on_input: bool = False
    correction: Tensor | None = None
    weighted: bool = False
    groups: int = 1
    kept: int = 1
    best: int = 2
    left_out: float = float("-inf")
    shared: MlpSpec | None = None
    shared_gate: Projection | None = None
    module: str = ""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class LayerSpec:
    """One layer: `x + gain * norm(attention(norm(x)))` and the same with the feed-forward block.

    `parallel` adds both to x. `residual` is what the first block's output is added to, times
    `carry`, and `second_residual` the second's; `gains` are those of one block each. With
    `sum_norms`, norms stand after the sums. A `skipped` layer gives its input.
    """

    attention: AttentionSpec
    mlp: MlpSpec | ExpertsSpec
    before_attention: NormSpec | None = None
    after_attention: NormSpec | None = None
    before_mlp: NormSpec | None = None
    after_mlp: NormSpec | None = None
    parallel: bool = False
    gain: float = 1.0
    residual: Literal["input", "normed", "none"] = "input"
    second_residual: Literal["input", "normed", "none", "first"] = "input"
    carry: tuple[float, float] = (1.0, 1.0)
    gains: tuple[float, float] = (1.0, 1.0)
    sum_norms: bool = False
    skipped: bool = False
    opaque: OpaquePart | None = None
    module: str = ""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class DecoderSpec:
    """A whole decoder, from ids to logits; `added` goes to every embedding,
    `head_map` and its activation come before the norm.
    """

    table: Tensor
    layers: tuple[LayerSpec, ...]
    head: Projection
    scale: float = 1.0
    positions: Tensor | None = None
    position_offset: int = 0
    added: Tensor | None = None
    embedding_norm: NormSpec | None = None
    head_map: Projection | None = None
    head_activation: str = "no activation"
    final_norm: NormSpec | None = None
    cap: float | None = None
    logit_scale: float = 1.0
    tied: bool = False
    embedding_module: str = ""
