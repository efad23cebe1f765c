"""Whether a scale that a layer declares itself is one that the width of its queries or its config
explains.

Such a scale is all that a layer can be held to where the config states none, and is nobody's
promise.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from attncheck.attention.layers import layer_type
from attncheck.attention.rope_spec import rope_parameters
from attncheck.core.finding import AtMost, Cause, Measurement, Verdict, skipped
from attncheck.judge.config_spec import SAME
from attncheck.judge.judge import Verdicted
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


def scale_cases(subject: Subject, layers: list[Verdicted]) -> Iterator[Measurement]:
    """Layers whose scale nothing states are named; the others' is held against their width and
    their config.
    """
    silent = [layer for layer in layers if layer.unstated]
    if silent:
        yield skipped(
            f"scale of {len(silent)} layers not judged", f"{silent[0].name}: {silent[0].unstated}"
        )
    claimed = [layer for layer in layers if not layer.unstated]
    if not claimed:
        return
    odd = [layer for layer in claimed if not _explained(subject, layer)]
    failed = [
        layer
        for layer in odd
        if _mistaken(subject, layer) or _has_siblings(subject, layer, claimed, odd)
    ]
    shown = (failed or odd or claimed)[0]
    yield AtMost(
        f"scale of {len(claimed)} layers",
        float(len(odd)),
        "layers have a scale that neither the width of their queries nor the config explains",
        broken=Verdict.FAIL if failed else Verdict.WARN,
        positions=len(claimed),
        note=f"{shown.name}: {_words(subject, shown)}" if odd else "",
        cause=Cause("softmax-scale" if failed else "", module=shown.name if odd else ""),
    )


def _config_of(subject: Subject, layer: Verdicted) -> Any:
    return getattr(subject.model.get_submodule(layer.name), "config", None) or subject.text_config


def _explained(subject: Subject, layer: Verdicted) -> bool:
    """1/sqrt(width) or that with a factor that is known, no scale at all, or what a field of the
    config states.
    """
    config, usual = _config_of(subject, layer), layer.width**-0.5
    if hasattr(config, layer.promised.source):
        return True
    factors = [1.0, _widening(subject, layer), *_scheme_factors(config, layer.index)]
    stated = [
        value for name, value in vars(config).items() if STATED.search(name) and _positive(value)
    ]
    known = [usual * each for each in factors] + [1.0]
    known += [1 / layer.width] if _normed(subject, layer) else []
    known += [
        each
        for value in stated
        for each in (value, 1 / value, value**-0.5, usual * value, usual / value)
    ]
    return any(abs(layer.promised.value / each - 1) < SAME for each in known)


def _positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def _normed(subject: Subject, layer: Verdicted) -> bool:
    """Whether the layer has norms over single heads: products of queries and keys are then as large
    as the width.
    """
    module = subject.model.get_submodule(layer.name)
    return any(
        "norm" in name and value.ndim == 1 and len(value) == layer.width
        for name, value in module.named_parameters()
    )


def _widening(subject: Subject, layer: Verdicted) -> float:
    """Where a layer reads more than the hidden states (these beside the embeddings), its heads may
    be widened for that alone.
    """
    weights = [
        each for each in subject.model.get_submodule(layer.name).parameters() if each.ndim == 2
    ]
    narrowest = min((each.shape[1] for each in weights), default=0)
    hidden = getattr(_config_of(subject, layer), "hidden_size", None)
    return math.sqrt(narrowest / hidden) if isinstance(hidden, int) and narrowest > hidden else 1.0


def _scheme_factors(config: Any, index: int | None) -> list[float]:
    """What a rotary scheme multiplies scores by: the square of its gain over all channels."""
    table = rope_parameters(config, index)
    if not isinstance(table, dict) or not table.get("factor") or not table.get("mscale_all_dim"):
        return []
    return [(0.1 * table["mscale_all_dim"] * math.log(table["factor"]) + 1) ** 2]


def _mistaken(subject: Subject, layer: Verdicted) -> str:
    """The size of the config whose root the scale is, where it is another one than the width."""
    config = _config_of(subject, layer)
    sizes: list[tuple[str, Any]] = [(name, getattr(config, name, None)) for name in SIZES]
    hidden, heads = (
        getattr(config, "hidden_size", None),
        getattr(config, "num_attention_heads", None),
    )
    if isinstance(hidden, int) and isinstance(heads, int) and heads:
        sizes.append(("hidden_size / num_attention_heads", hidden / heads))
    near = [
        name
        for name, size in sizes
        if _positive(size) and abs(layer.promised.value * math.sqrt(size) - 1) < SAME
    ]
    return near[0] if near else ""


def _has_siblings(
    subject: Subject, odd: Verdicted, layers: list[Verdicted], all_odd: list[Verdicted]
) -> bool:
    """Whether another layer of the same type and width has a scale that is explained."""

    def kind(layer: Verdicted) -> tuple[str | None, int]:
        return layer_type(_config_of(subject, layer), layer.index), layer.width

    return any(kind(layer) == kind(odd) for layer in layers if layer not in all_odd)


def _words(subject: Subject, layer: Verdicted) -> str:
    size, value = _mistaken(subject, layer), layer.promised.value
    root = f", 1/sqrt({size})" if size else ""
    usual = f"1/sqrt({layer.width}) = {layer.width**-0.5:.6g}"
    return f"{value:.6g} by {layer.promised.source}{root}, where the width of its queries gives {usual}"
