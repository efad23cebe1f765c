"""Parts of a decoder found by trying: the norm, the feed-forward block or the cap that gives what
was observed.

Axes: T positions, C channels, E experts, I inner channels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from attncheck.compare.decoder import compute, feed_forward
from attncheck.compare.decoder.observed import Observed, Unreadable, equal
from attncheck.compare.decoder.spec import MlpSpec, NormKind, NormSpec, Projection

EPS_NAMES = ("variance_epsilon", "eps", "epsilon", "norm_eps", "layer_norm_eps", "rms_norm_eps")
KINDS: tuple[NormKind, ...] = ("rms", "layer")
COARSE = 1e-7
"""How far the constants of an activation may be rounded: two kinds of one are 1e-4 apart."""
USUAL_EPS = (1e-5, 1e-6, 1e-8, 1e-12, 0.0)


def norm_of(observed: Observed, name: str) -> NormSpec | None:
    """The norm that a module computes; None where it is none."""
    x, y = observed.inputs.get(name), observed.outputs.get(name)
    if x is None or y is None or x.shape != y.shape:
        return None
    module = observed.module(name)
    weight, bias = (_vector(module, each, x) for each in ("weight", "bias"))
    if next(module.parameters(), None) is not None and weight is None:
        return None
    stated = [getattr(module, each, None) for each in EPS_NAMES]
    known = [float(each) for each in stated if isinstance(each, float)]
    for eps, offset in itertools.product((*known, *USUAL_EPS), (0.0, 1.0)):
        for kind in KINDS:
            found = NormSpec(kind=kind, eps=eps, weight=weight, bias=bias, offset=offset)
            if equal(compute.normed(found, x), y):
                return replace(found, module=name)
    return None


def _vector(module: nn.Module, name: str, x: Tensor) -> Tensor | None:
    value = getattr(module, name, None)
    if isinstance(value, Tensor) and value.ndim == 1 and len(value) == x.shape[-1]:
        return value.detach().double()
    return None


def mlp_of(observed: Observed, prefix: str) -> MlpSpec | None:
    """The plain feed-forward block that a module computes; None where its output is that of no
    linear map.

    Raises:
        Unreadable: no combination of its linear maps gives its output.
    """
    x, y = observed.inputs[prefix], observed.outputs[prefix]
    linears = observed.linears(prefix)
    down = next((name for name in linears if equal(observed.outputs[name], y)), None)
    if down is None:
        return None
    first = [each for name, each in linears.items() if equal(observed.inputs[name], x)]
    inner = observed.inputs[down]
    for gate, up in _halves(first, inner.shape[-1]):
        for activation in feed_forward.ACTIVATIONS:
            found = MlpSpec(
                up=up, gate=gate, down=linears[down], activation=activation, module=prefix
            )
            if equal(feed_forward.mlp(found, x), y, COARSE):
                return found
    raise Unreadable(f"{prefix} is no feed-forward block that can be written out")


def mlp_between(observed: Observed, first: str, last: str) -> MlpSpec:
    """The plain feed-forward block of two linear maps that stand in a layer side by side.

    Raises:
        Unreadable: they are no such maps.
    """
    up, down = observed.linear(first), observed.linear(last)
    if up is None or down is None:
        raise Unreadable(f"{first} and {last} are no linear maps")
    for activation in feed_forward.ACTIVATIONS:
        found = MlpSpec(up=up, down=down, activation=activation, module=last)
        if equal(feed_forward.mlp(found, observed.inputs[first]), observed.outputs[last]):
            return found
    raise Unreadable(f"{first} and {last} are no feed-forward block that can be written out")


def _halves(first: list[Projection], inner: int) -> Iterator[tuple[Projection | None, Projection]]:
    """Every choice of gate and up among the maps that read the block's input."""
    for each in first:
        if len(each.weight) == inner:
            yield None, each
        elif len(each.weight) == 2 * inner:
            halves = [sliced(each, slice(0, inner)), sliced(each, slice(inner, None))]
            yield halves[0], halves[1]
            yield halves[1], halves[0]
    yield from itertools.permutations(first, 2)


def sliced(projection: Projection, rows: slice | Tensor) -> Projection:
    """Some rows of a linear map."""
    bias = None if projection.bias is None else projection.bias[rows]
    return replace(projection, weight=projection.weight[rows], bias=bias)


def cap_of(before: Tensor, after: Tensor, slack: float = 1e-7) -> float | None:
    """The cap c of c * tanh(x / c), from the largest value; None where that is no cap."""
    place = int(before.abs().argmax())
    x, y = abs(float(before.flatten()[place])), abs(float(after.flatten()[place]))
    if y == 0 or x <= y:
        return None
    low, high = y, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if middle * math.tanh(x / middle) < y else (low, middle)
    for cap in (round(high), high):
        if cap and equal(torch.tanh(before / cap) * cap, after, slack):
            return float(cap)
    return None
