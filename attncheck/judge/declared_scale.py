"""Whether a scale that a layer declares itself follows from the width of its queries or its config.

Such a scale is all there is to check a layer against where the config states none, and may itself
be wrong.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from attncheck.attention.layers import layer_type
from attncheck.attention.rope_spec import PART, rope_parameters
from attncheck.core.measurement import AtMost, Cause, Measurement, skipped
from attncheck.core.verdict import Verdict
from attncheck.judge.config_spec import SAME, positive
from attncheck.judge.judge import LayerResult
from attncheck.model.subject import Subject

STATED = re.compile(
    r"(?=.*(attn|attention|qk|query|softmax|score))(?=.*(scal|mult|factor))|^scale$|^scaling$"
)
SIZES = (
    "hidden_size",
    "n_embd",
    "d_model",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "head_dim",
)
"""Fields whose root a scale is taken from by mistake."""


FAR = 2.0
"""Scales that somebody chose and no config states stay nearer than this to the usual one: of the
285 types of models of a release none is off at all.
"""


def _cap_cases(layers: list[LayerResult]) -> Iterator[Measurement]:
    """Soft-caps that nothing states: they may be meant where every layer has the same."""
    caps = Counter(float(f"{layer.own_cap:.6g}") for layer in layers)
    if not any(caps):
        return
    usual, count = caps.most_common(1)[0]
    if len(caps) == 1:
        why = f"the scores are capped at {usual:g}, and nothing states a soft-cap"
        yield skipped(f"soft-cap of {count} layers not judged", f"{layers[0].name}: {why}")
        return
    odd = [layer for layer in layers if not math.isclose(layer.own_cap, usual, rel_tol=SAME)]
    most = f"those of most layers at {usual:g}" if usual else "those of most layers are not"
    own = f"are capped at {odd[0].own_cap:.6g}" if odd[0].own_cap else "are not capped"
    yield AtMost(
        f"soft-cap of {len(layers)} layers",
        float(len(odd)),
        "layers have another soft-cap than most",
        positions=len(layers),
        note=f"{odd[0].name}: its scores {own}, {most}",
        cause=Cause(module=odd[0].name),
    )


def scale_cases(subject: Subject, layers: list[LayerResult]) -> Iterator[Measurement]:
    """Skip the layers whose scale nothing states; check the scale of the others against their width
    and their config.
    """
    silent = [layer for layer in layers if layer.unstated]
    if silent:
        yield skipped(
            f"scale of {len(silent)} layers not judged", f"{silent[0].name}: {silent[0].unstated}"
        )
    yield from _cap_cases(layers)
    claimed = [layer for layer in layers if not layer.unstated]
    if not claimed:
        return
    unexpected = [layer for layer in claimed if not _explained(subject, layer)]
    explained = [layer for layer in claimed if layer not in unexpected]
    failed = [
        layer
        for layer in unexpected
        if _far_off(layer)
        or _lacks_scheme(subject, layer)
        or _mistaken_size(subject, layer)
        or _has_siblings(subject, layer, explained)
    ]
    shown = (failed or unexpected or claimed)[0]
    yield AtMost(
        f"scale of {len(claimed)} layers",
        float(len(unexpected)),
        "layers have a scale that neither the width of their queries nor the config explains",
        broken=Verdict.FAIL if failed else Verdict.WARN,
        positions=len(claimed),
        note=f"{shown.name}: {_difference(subject, shown)}" if unexpected else "",
        cause=Cause("softmax-scale" if failed else "", module=shown.name if unexpected else ""),
    )


def _config_of(subject: Subject, layer: LayerResult) -> Any:
    return getattr(subject.model.get_submodule(layer.name), "config", None) or subject.text_config


def _explained(subject: Subject, layer: LayerResult) -> bool:
    """Whether it is 1/sqrt(width), that times a known factor, or stated by the config. It may be 1
    beside norms of single heads, and beside a learned bias as T5 has it; with norms also 1/width.
    """
    config, usual = _config_of(subject, layer), layer.width**-0.5
    if hasattr(config, layer.scale.source):
        return True
    wider = (1.0, _widening(subject, layer))
    factors = [one * other for one in _scheme_factors(config, layer.index) for other in wider]
    known = [usual * each for each in factors] + [1.0] * layer.biased
    # normed heads have products as large as the width, and the norm's weight may hold the scale
    if _has_head_norms(subject, layer):
        known += [1 / layer.width, 1.0]
    for name, field in getattr(config, "__dict__", {}).items():
        value = positive(field) if STATED.search(name) else None
        if value:
            known += [value, 1 / value, value**-0.5, usual * value, usual / value]
    return any(abs(layer.scale.value / each - 1) < SAME for each in known)


def _far_off(layer: LayerResult) -> bool:
    """Whether a scale is at least `FAR` times too large or too small. 1/width is not: training at
    several widths takes it (muP), and nothing in a model tells it from a root that is missing.
    """
    off = abs(math.log(layer.scale.value * math.sqrt(layer.width)))
    return off > math.log(FAR) - SAME and abs(layer.scale.value * layer.width - 1) > SAME


def _has_head_norms(subject: Subject, layer: LayerResult) -> bool:
    """Whether the layer normalises single heads: products of queries and keys are then as large as
    the width.
    """
    return any(
        "norm" in name and value.ndim == 1 and len(value) == layer.width
        for name, value in subject.model.get_submodule(layer.name).named_parameters()
    )


def _widening(subject: Subject, layer: LayerResult) -> float:
    """How much wider heads are where a layer reads more than the hidden states (the embeddings
    beside them).
    """
    parameters = subject.model.get_submodule(layer.name).parameters()
    narrowest = min((each.shape[1] for each in parameters if each.ndim == 2), default=0)
    hidden = getattr(_config_of(subject, layer), "hidden_size", None)
    return math.sqrt(narrowest / hidden) if isinstance(hidden, int) and narrowest > hidden else 1.0


def _scheme_factors(config: Any, index: int | None) -> list[float]:
    """What a rotary scheme multiplies scores by: the square of its gain over all channels. Where
    all channels rotate, their tables may have it; where only a part does, the scale must.
    """
    rope = rope_parameters(config, index)
    if not isinstance(rope, dict) or not rope.get("factor") or not rope.get("mscale_all_dim"):
        return [1.0]
    squared = (0.1 * rope["mscale_all_dim"] * math.log(rope["factor"]) + 1) ** 2
    in_part = getattr(config, PART, None) and rope["rope_type"] != "default"
    return [squared] if in_part else [squared, 1.0]


def _lacks_scheme(subject: Subject, layer: LayerResult) -> float:
    """The factor of the rotary scheme that the scale lacks; 0 where it lacks none."""
    factors = _scheme_factors(_config_of(subject, layer), layer.index)
    usual = abs(layer.scale.value * math.sqrt(layer.width) - 1) < SAME
    return factors[0] if usual and 1.0 not in factors else 0.0


def _mistaken_size(subject: Subject, layer: LayerResult) -> str:
    """The size whose root the scale is, where it is another one than the width."""
    config = _config_of(subject, layer)
    sizes = {name: positive(getattr(config, name, None)) for name in SIZES}
    heads = positive(getattr(config, "num_attention_heads", None))
    if sizes["hidden_size"] and heads:
        sizes["hidden_size / num_attention_heads"] = sizes["hidden_size"] / heads
    return next(
        (
            name
            for name, size in sizes.items()
            if size and abs(layer.scale.value * math.sqrt(size) - 1) < SAME
        ),
        "",
    )


def _has_siblings(subject: Subject, layer: LayerResult, explained: list[LayerResult]) -> bool:
    """Whether a layer of the same type and width has a scale that is explained."""

    def kind(each: LayerResult) -> tuple[str | None, int]:
        return layer_type(_config_of(subject, each), each.index), each.width

    return any(kind(each) == kind(layer) for each in explained)


def _difference(subject: Subject, layer: LayerResult) -> str:
    size, scale = _mistaken_size(subject, layer), layer.scale
    root = f", 1/sqrt({size})" if size else ""
    usual = f"1/sqrt({layer.width}) = {layer.width**-0.5:.6g}"
    lacking = _lacks_scheme(subject, layer)
    if lacking:
        return f"{scale.value:.6g} lacks the factor {lacking:.6g} of the config's mscale_all_dim"
    return f"{scale.value:.6g} by {scale.source}{root}; the width of its queries gives {usual}"
