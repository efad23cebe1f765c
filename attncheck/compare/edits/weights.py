"""Weights and biases: exchanged, permuted, transposed, of another sign or size, or simply others.

Axes: R rows, C columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import permutations
from typing import Any

import torch
from torch import Tensor

from attncheck.compare.decoder.spec import (
    AttentionSpec,
    DecoderSpec,
    ExpertsSpec,
    LayerSpec,
    MlpSpec,
    Projection,
)
from attncheck.compare.edits.edit import Edit, Fields
from attncheck.compare.edits.port_weights import PortWeights, Standing
from attncheck.compare.weights import difference, interleaved, taken_apart

ATTENTION = ("query", "key", "value", "output")
MLP = ("gate", "up", "down")
LATE = 4
"""The cost of a guess about a weight that stands in the port as it should."""


def projections(layer: LayerSpec) -> dict[str, Projection]:
    """The linear maps of a layer by what they are."""
    found = {name: getattr(layer.attention, name) for name in ATTENTION}
    if isinstance(layer.mlp, MlpSpec):
        found |= {name: getattr(layer.mlp, name) for name in MLP}
    else:
        found["router"] = layer.mlp.router
    return {name: each for name, each in found.items() if each is not None and each.module}


def with_projections(layer: LayerSpec, changed: dict[str, Projection]) -> LayerSpec:
    """The layer with some of its linear maps replaced."""
    ours: Fields = {name: each for name, each in changed.items() if name in ATTENTION}
    others: Fields = {name: each for name, each in changed.items() if name not in ATTENTION}
    if ours:
        layer = replace(layer, attention=replace(layer.attention, **ours))
    mlp: Any = layer.mlp
    return replace(layer, mlp=replace(mlp, **others)) if others else layer


def known_weights(spec: DecoderSpec) -> list[Tensor]:
    """Every matrix of the reference."""
    found = [spec.table, spec.head.weight]
    found += [spec.positions] if spec.positions is not None else []
    for layer in spec.layers:
        found += [each.weight for each in projections(layer).values()]
        if isinstance(layer.mlp, ExpertsSpec):
            found += [getattr(e, n).weight for e in layer.mlp.experts for n in MLP if getattr(e, n)]
    return found


def weight_edits(
    spec: DecoderSpec, number: int, port: PortWeights, foreign: dict[str, Tensor]
) -> Iterator[Edit]:
    """Every edit of a layer's weights; `foreign` are matrices that only the port has."""
    layer = spec.layers[number]
    maps = projections(layer)
    if not maps:
        return
    width = layer.attention.width
    standing = {
        name: port.standing(each.weight, width if name in ATTENTION[:3] else len(each.weight))
        for name, each in maps.items()
    }
    yield from _biases(layer, maps)
    if "query" in maps:
        yield from _exchanged(layer, maps)
        yield from _permuted(layer, maps, standing, port)
    for name, each in maps.items():
        cost = LATE if standing[name] == "same" else 1
        yield from _turned(layer, name, each, cost)
        yield from _of_other_layers(spec, number, name, each, cost)
        if standing[name] == "absent":
            yield from _foreign(layer, name, each, foreign)


def weight_edit(
    layer: LayerSpec,
    changed: dict[str, Projection],
    name: str,
    got: str,
    want: str = "",
    fix: str = "",
    cost: int = 1,
) -> Edit:
    """An edit of some linear maps of a layer."""
    first = next(iter(changed))
    maps = projections(layer)
    attention = first in ATTENTION
    return Edit(
        name=name,
        part="attention" if attention else "mlp",
        got=got,
        want=want,
        fix=fix,
        cost=cost,
        module=maps[first].module or (layer.attention.module if attention else layer.mlp.module),
        on_layer=lambda each: with_projections(each, changed),
    )


def _biases(layer: LayerSpec, maps: dict[str, Projection]) -> Iterator[Edit]:
    biased = {name: each for name, each in maps.items() if each.bias is not None}
    three = [name for name in ATTENTION[:3] if name in biased]
    groups = [[name] for name in biased] + ([three] if len(three) > 1 else [])
    for group in groups:
        words = "query, key and value" if len(group) == 3 else " and ".join(group)
        for name, factor, got, fix in (
            ("bias-missing", 0.0, f"no bias on the {words}", "adding the bias"),
            ("bias-doubled", 2.0, f"the {words} bias added twice", "adding it once"),
            ("bias-sign", -1.0, f"the {words} bias subtracted", "adding it"),
        ):
            changed = {each: _biased(biased[each], factor) for each in group}
            yield weight_edit(layer, changed, name, got, fix=fix)
    for name, other in permutations(biased, 2):
        bias, own = biased[other].bias, biased[name].bias
        if bias is not None and own is not None and bias.shape == own.shape:
            changed = {name: replace(biased[name], bias=bias)}
            got, fix = f"the {other} bias on the {name}", f"putting the {name} bias in"
            yield weight_edit(layer, changed, "bias-exchanged", got, fix=fix, cost=2)


def _biased(projection: Projection, factor: float) -> Projection:
    """A linear map with its bias multiplied."""
    bias = projection.bias
    return replace(projection, bias=None if bias is None else bias * factor)


def _exchanged(layer: LayerSpec, maps: dict[str, Projection]) -> Iterator[Edit]:
    three = [name for name in ATTENTION[:3] if name in maps]
    for order in permutations(three):
        if list(order) == three:
            continue
        changed = {a: maps[b] for a, b in zip(three, order, strict=True) if a != b}
        if any(maps[a].weight.shape != each.weight.shape for a, each in changed.items()):
            continue
        got = f"query, key and value taken as {', '.join(order)}"
        fix = "taking them in the right order"
        yield weight_edit(layer, changed, "qkv-order", got, "query, key, value", fix)


def _permuted(
    layer: LayerSpec,
    maps: dict[str, Projection],
    standing: dict[str, Standing],
    port: PortWeights,
) -> Iterator[Edit]:
    spec = layer.attention
    if spec.shared_key is not None:
        return
    counts = {"query": spec.heads, "key": spec.groups, "value": spec.groups}
    forms: dict[str, Callable[[Tensor, int], Tensor]] = {
        "halves of each head interleaved": interleaved,
        "pairs of each head taken apart": taken_apart,
    }
    for words, form in forms.items():
        for names in (("query", "key"), ("query",), ("key",), ("value",)):
            changed = {
                name: rows_of(maps[name], permuted_rows(form, counts[name], spec)) for name in names
            }
            late = all(standing[name] == "same" for name in names)
            got = f"rows of {' and '.join(names)} permuted: {words}"
            fix = "putting the rows back"
            yield weight_edit(layer, changed, "rows-permuted", got, "", fix, LATE if late else 1)
    for name in ATTENTION[:3]:
        order_R = port.order_of(maps[name].weight)
        if order_R is None or torch.equal(order_R, torch.arange(len(order_R))):
            continue
        changed = {name: rows_of(maps[name], order_R)}
        inside = standing[name] == "permuted"
        got = f"{'rows' if inside else 'heads'} of the {name} in another order"
        yield weight_edit(layer, changed, "rows-permuted", got, "", "putting the rows back", 2)
    columns = interleaved(torch.arange(maps["output"].weight.shape[1]), spec.heads)
    turned = replace(maps["output"], weight=maps["output"].weight[:, columns])
    yield weight_edit(
        layer, {"output": turned}, "rows-permuted", "columns of the output permuted", cost=LATE
    )


def permuted_rows(form: Callable[[Tensor, int], Tensor], heads: int, spec: AttentionSpec) -> Tensor:
    """The order of the rows of some heads under a permutation of their rotated channels."""
    width = spec.width if spec.rotary is None else min(spec.rotary.width, spec.width)
    rows_HD = torch.arange(heads * spec.width).view(heads, spec.width)
    inner = form(torch.arange(heads * width), heads).view(heads, width)
    starts_H1 = torch.arange(heads)[:, None]
    moved_HR = inner - starts_H1 * width + starts_H1 * spec.width
    return torch.cat([moved_HR, rows_HD[:, width:]], 1).flatten()


def rows_of(projection: Projection, order_R: Tensor) -> Projection:
    """A linear map with its rows, and their biases, in another order."""
    bias = None if projection.bias is None else projection.bias[order_R]
    return replace(projection, weight=projection.weight[order_R], bias=bias)


def _turned(layer: LayerSpec, name: str, each: Projection, cost: int) -> Iterator[Edit]:
    rows, columns = each.weight.shape
    if rows == columns:
        turned = replace(each, weight=each.weight.T)
        got = f"the {name} weight transposed"
        yield weight_edit(
            layer, {name: turned}, "weight-transposed", got, "", "transposing it back", min(cost, 2)
        )
    else:
        viewed = replace(each, weight=each.weight.T.reshape(rows, columns))
        got = f"the {name} weight transposed and its numbers read in rows of {columns}"
        fix = "transposing it back"
        yield weight_edit(layer, {name: viewed}, "weight-transposed", got, "", fix, max(cost, 2))
    minus = replace(each, weight=-each.weight)
    got = f"the {name} weight of the other sign"
    yield weight_edit(layer, {name: minus}, "weight-sign", got, cost=cost)


def scaled_edit(layer: LayerSpec, name: str, factor: float) -> Edit:
    """An edit of the size of one weight."""
    each = projections(layer)[name]
    bias = None if each.bias is None else each.bias * factor
    changed = {name: replace(each, weight=each.weight * factor, bias=bias)}
    words = "weight-sign" if factor == -1 else "weight-scale"
    got = f"the {name} multiplied by {factor:.6g}"
    return weight_edit(layer, changed, words, got, fix="dividing it by that", cost=2)


def _of_other_layers(
    spec: DecoderSpec, number: int, name: str, each: Projection, cost: int
) -> Iterator[Edit]:
    for other, layer in enumerate(spec.layers):
        theirs = projections(layer).get(name)
        if other == number or theirs is None or theirs.weight.shape != each.weight.shape:
            continue
        changed = replace(each, weight=theirs.weight)
        got = f"the {name} weight of layer {other}"
        yield weight_edit(
            spec.layers[number],
            {name: changed},
            "weight-exchanged",
            got,
            f"that of layer {number}",
            cost=max(2, cost),
        )


def readings(matrix_RC: Tensor, shape: torch.Size) -> Iterator[Tensor]:
    """The parts of a port's matrix that have a weight's shape: itself, transposed, or a slice of
    the rows of a fused one.
    """
    for each in (matrix_RC, matrix_RC.T):
        rows, columns = each.shape
        if columns == shape[1] and rows >= shape[0]:
            step = shape[0] if rows % shape[0] == 0 else max(1, rows - shape[0])
            starts = set(range(0, rows - shape[0] + 1, step)) | {rows - shape[0]}
            yield from (each[start : start + shape[0]] for start in sorted(starts))


def relation(theirs: Tensor, ours: Tensor) -> tuple[str, str]:
    """The name and the words of how one weight differs from another of its shape."""
    factor = float((theirs * ours).sum() / ours.square().sum().clamp_min(1e-300))
    left = float((theirs - factor * ours).norm() / theirs.norm().clamp_min(1e-300))
    if left < 1e-6:
        if abs(factor + 1) < 1e-6:
            return "weight-sign", "of the other sign"
        return "weight-scale", f"multiplied by {factor:.6g}"
    for dtype in (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2):
        if torch.equal(ours.to(dtype).double(), theirs):
            return "weight-precision", f"rounded to {str(dtype).removeprefix('torch.')}"
    if theirs.shape[0] == theirs.shape[1] and torch.equal(theirs.T, ours):
        return "weight-transposed", "transposed"
    found = difference("", ours, theirs)
    if found.kind == "order":
        return "rows-permuted", f"with {found.words}"
    return "weights-differ", f"that {found.words}"


def _foreign(
    layer: LayerSpec, name: str, each: Projection, foreign: dict[str, Tensor]
) -> Iterator[Edit]:
    for matrix_RC in foreign.values():
        for theirs in readings(matrix_RC, each.weight.shape):
            kind, words = relation(theirs, each.weight)
            changed = {name: replace(each, weight=theirs)}
            got = f"the {name} weight {words}"
            yield weight_edit(layer, changed, kind, got, "", "putting the reference's weight in")
