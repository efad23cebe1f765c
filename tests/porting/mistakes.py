"""The single mistakes of a port: which families can make each, and what names it rightly.

Mistakes in weights change the recipe; mistakes in code are switches that each style reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from porting.recipe import Recipe

ROTARY = ("llama", "llama3", "qwen2", "qwen3", "gemma2", "gemma3", "mistral", "mixtral", "phi")
GROUPED = ("llama", "llama3", "qwen2", "qwen3", "gemma2", "gemma3", "mistral", "mixtral")
GATED = ("llama", "llama3", "qwen2", "qwen3", "gemma2", "gemma3", "mistral")
WINDOWED = ("gemma2", "gemma3", "mistral")
SEQUENTIAL = ("llama", "llama3", "qwen2", "qwen3", "gemma2", "gemma3", "mistral", "mixtral", "gpt2")
BIASED = ("qwen2", "phi", "gpt2")
SANDWICH = ("gemma2", "gemma3")
ALL = (*ROTARY, "gpt2")
Change = Callable[[Recipe, int], Recipe]


@dataclass(frozen=True)
class Mistake:
    """One mistake: its switch, who can make it, the right names, the part where it is, and what it
    does to the weights. `layered` ones may stand in one layer only."""

    switch: str
    families: tuple[str, ...]
    names: tuple[str, ...]
    part: str
    change: Change | None = None
    layered: bool = True


def _with(recipe: Recipe, layer: int, **tensors: Tensor | None) -> Recipe:
    kept = {k: v for k, v in {**recipe.layers[layer], **tensors}.items() if v is not None}
    layers = (*recipe.layers[:layer], kept, *recipe.layers[layer + 1 :])
    return replace(recipe, layers=layers)


def _rows(weight: Tensor, heads: int, apart: bool) -> Tensor:
    """Rows of each head as pairs instead of halves, or the reverse."""
    shape = weight.shape
    if apart:
        return (
            weight.view(heads, shape[0] // heads // 2, 2, *shape[1:]).transpose(1, 2).reshape(shape)
        )
    return weight.view(heads, 2, shape[0] // heads // 2, *shape[1:]).transpose(1, 2).reshape(shape)


def _permuted(recipe: Recipe, layer: int) -> Recipe:
    w = recipe.layers[layer]
    return _with(
        recipe, layer, q=_rows(w["q"], recipe.heads, False), k=_rows(w["k"], recipe.groups, False)
    )


def _value_permuted(recipe: Recipe, layer: int) -> Recipe:
    return _with(recipe, layer, v=_rows(recipe.layers[layer]["v"], recipe.groups, True))


def _transposed(recipe: Recipe, layer: int) -> Recipe:
    return _with(recipe, layer, o=recipe.layers[layer]["o"].T.contiguous())


def _exchanged(recipe: Recipe, layer: int) -> Recipe:
    w = recipe.layers[layer]
    return _with(recipe, layer, k=w["v"], v=w["k"], k_bias=w.get("v_bias"), v_bias=w.get("k_bias"))


def _cyclic(recipe: Recipe, layer: int) -> Recipe:
    w = recipe.layers[layer]
    new = {a: w[b] for a, b in zip("qkv", "kvq", strict=True)}
    new |= {f"{a}_bias": w[f"{b}_bias"] for a, b in zip("qkv", "kvq", strict=True)}
    return _with(recipe, layer, **new)


def _no_bias(recipe: Recipe, layer: int) -> Recipe:
    w = recipe.layers[layer]
    names = [n for n in ("q_bias", "k_bias", "v_bias") if n in w]
    return _with(recipe, layer, **{n: torch.zeros_like(w[n]) for n in names})


def _double_bias(recipe: Recipe, layer: int) -> Recipe:
    return _with(recipe, layer, v_bias=2 * recipe.layers[layer]["v_bias"])


def _sign(recipe: Recipe, layer: int) -> Recipe:
    return _with(recipe, layer, down=-recipe.layers[layer]["down"])


def _scaled(recipe: Recipe, layer: int) -> Recipe:
    return _with(recipe, layer, o=0.5 * recipe.layers[layer]["o"])


def _cast(recipe: Recipe, layer: int) -> Recipe:
    w = recipe.layers[layer]
    return _with(recipe, layer, up=w["up"].to(torch.float8_e4m3fn).to(w["up"].dtype))


def _other_layer(recipe: Recipe, layer: int) -> Recipe:
    other = recipe.layers[(layer + 1) % len(recipe.layers)]
    return _with(recipe, layer, up=other["up"])


def _noisy(recipe: Recipe, layer: int) -> Recipe:
    v = recipe.layers[layer]["v"]
    drawn = torch.randn(v.shape, generator=torch.Generator().manual_seed(3))
    return _with(recipe, layer, v=v + 0.05 * drawn.to(v.dtype))


WEIGHTS = ("weights-differ",)
MISTAKES = (
    Mistake("rotary-base", ROTARY, ("rotary-base",), "attention"),
    Mistake("rotary-base-odd", ROTARY, ("rotary-base",), "attention"),
    Mistake(
        "rotary-local-base",
        ("gemma3",),
        ("rotary-base", "rotary-scaling"),
        "attention",
        layered=False,
    ),
    Mistake("rotary-pairing", ROTARY, ("rotary-pairing",), "attention"),
    Mistake("rotary-width", ROTARY, ("rotary-width",), "attention"),
    Mistake(
        "rotary-scaling", ("llama3", "gemma3"), ("rotary-scaling",), "attention", layered=False
    ),
    Mistake("rotary-factor", ("gemma3", "llama"), ("rotary-scaling",), "attention"),
    Mistake("rotary-direction", ROTARY, ("rotary-direction",), "attention"),
    Mistake("rotary-key-offset", ROTARY, ("position-offset",), "attention"),
    Mistake("rotary-key", ROTARY, ("rotary-missing",), "attention"),
    Mistake("position-offset", ("gpt2",), ("position-offset",), "embedding", layered=False),
    Mistake("score-scale", ALL, ("softmax-scale",), "attention"),
    Mistake("score-scale-none", ALL, ("softmax-scale",), "attention"),
    Mistake("score-cap", ("gemma2",), ("softcap-missing",), "attention"),
    Mistake("head-groups", GROUPED, ("kv-groups-tiled",), "attention"),
    Mistake("heads-unmoved", ALL, ("heads-merged",), "attention"),
    Mistake("mask-ahead", ALL, ("mask-off-by-one",), "attention"),
    Mistake("causal", ALL, ("causal-mask-missing",), "attention"),
    Mistake("window-off", WINDOWED, ("window-off-by-one",), "attention"),
    Mistake("window-ignored", WINDOWED, ("window-ignored",), "attention"),
    Mistake("window-layers", SANDWICH, ("window-layers-swapped",), "attention", layered=False),
    Mistake("qk-norm", ("qwen3", "gemma3"), ("qk-norm",), "attention"),
    Mistake("qk-norm-late", ("qwen3", "gemma3"), ("qk-norm",), "attention"),
    Mistake("kv-exchanged", GROUPED, ("qkv-order",), "attention", _exchanged),
    Mistake("qkv-cyclic", ("phi", "gpt2"), ("qkv-order",), "attention", _cyclic),
    Mistake(
        "rows-permuted",
        ("llama", "qwen2", "qwen3", "mistral", "gemma2"),
        ("rows-permuted",),
        "attention",
        _permuted,
    ),
    Mistake("value-permuted", ALL, ("rows-permuted",), "attention", _value_permuted),
    Mistake("transposed", ALL, ("weight-transposed",), "attention", _transposed),
    Mistake("bias-missing", BIASED, ("bias-missing",), "attention", _no_bias),
    Mistake("bias-doubled", BIASED, ("bias-doubled",), "attention", _double_bias),
    Mistake("weight-sign", GATED, ("weight-sign",), "mlp", _sign),
    Mistake("weight-scale", ALL, ("weight-scale",), "attention", _scaled),
    Mistake("weight-cast", GATED, ("weight-precision", "weights-differ"), "mlp", _cast),
    Mistake("weight-layer", GATED, ("weight-exchanged",), "mlp", _other_layer),
    Mistake("weight-noise", ALL, WEIGHTS, "attention", _noisy),
    Mistake("norm-kind", ALL, ("norm-kind",), "norm", layered=False),
    Mistake("norm-eps", ALL, ("norm-eps",), "norm"),
    Mistake("norm-offset", ROTARY[:-1], ("norm-offset",), "norm", layered=False),
    Mistake("norm-missing", ALL, ("norm-missing",), "norm"),
    Mistake("norm2-missing", SEQUENTIAL, ("norm-missing",), "norm"),
    Mistake("post-norm-missing", SANDWICH, ("norm-missing",), "norm"),
    Mistake("activation", ALL, ("activation",), "mlp"),
    Mistake("activation-exact", ALL, ("activation",), "mlp"),
    Mistake("gate-up", GATED, ("gate-up-exchanged",), "mlp"),
    Mistake("residual", SEQUENTIAL, ("residual",), "layer"),
    Mistake("residual-missing", SEQUENTIAL, ("residual",), "layer"),
    Mistake("residual-first", SEQUENTIAL, ("residual",), "layer"),
    Mistake("parallel", ALL, ("parallel-block",), "layer"),
    Mistake("router-order", ("mixtral",), ("router-order", "router-normalisation"), "mlp"),
    Mistake("router-sigmoid", ("mixtral",), ("router-order", "router-normalisation"), "mlp"),
    Mistake("router-count", ("mixtral",), ("router-experts",), "mlp"),
    Mistake("embedding-scale", ALL, ("embedding-scale",), "embedding", layered=False),
    Mistake("final-norm-missing", ALL, ("norm-missing",), "norm", layered=False),
    Mistake(
        "head-tied",
        ("llama", "qwen2", "mistral", "mixtral", "phi"),
        ("head-tied",),
        "head",
        layered=False,
    ),
    Mistake(
        "head-untied",
        ("llama3", "gemma2", "gemma3", "gpt2"),
        ("head-untied", "weights-differ"),
        "head",
        layered=False,
    ),
    Mistake("logit-cap", ("gemma2",), ("logit-cap",), "head", layered=False),
    Mistake(
        "logit-scale", ("llama", "qwen2", "gpt2", "phi"), ("logit-scale",), "head", layered=False
    ),
)
BY_SWITCH = {each.switch: each for each in MISTAKES}


def flawed(recipe: Recipe, switch: str, layer: int | None = None) -> Recipe:
    """A recipe with one mistake more, in one layer or in every layer."""
    mistake = BY_SWITCH[switch]
    if mistake.change is not None:
        for number in range(len(recipe.layers)) if layer is None else (layer,):
            recipe = mistake.change(recipe, number)
        return recipe
    return replace(recipe, flaws={**recipe.flaws, switch: layer})
