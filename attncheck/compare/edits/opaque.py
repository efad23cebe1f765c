"""Weights of parts that are run rather than written out: each of them as a port may have it.

Axes: R rows, C columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor

from attncheck.compare.decoder.spec import DecoderSpec, LayerSpec, OpaquePart
from attncheck.compare.edits.edit import Edit
from attncheck.compare.edits.port_weights import PortWeights
from attncheck.compare.edits.weights import readings, relation

PARTS = ("attention", "mlp", "layer")
BACK = "putting the reference's weight in"


def opaque_edits(
    spec: DecoderSpec, number: int, port: PortWeights, foreign: dict[str, Tensor]
) -> Iterator[Edit]:
    """Every edit of the weights inside a layer's opaque parts."""
    layer = spec.layers[number]
    for part in PARTS:
        opaque = _of(layer, part)
        if opaque is None:
            continue
        for name, weight in opaque.own.items():
            for kind, got, changed in _variants(name, weight, port, foreign):
                yield _edit(layer, part, opaque, name, kind, got, changed)
            for other, each in enumerate(spec.layers):
                theirs = _of(each, part)
                same = theirs is not None and theirs.own.get(name)
                if other != number and isinstance(same, Tensor) and same.shape == weight.shape:
                    got = f"the {name} of layer {other}"
                    yield _edit(layer, part, opaque, name, "weight-exchanged", got, same)


def _of(layer: LayerSpec, part: str) -> OpaquePart | None:
    found: Any = layer if part == "layer" else getattr(layer, part)
    opaque: OpaquePart | None = getattr(found, "opaque", None)
    return opaque


def _variants(
    name: str, weight: Tensor, port: PortWeights, foreign: dict[str, Tensor]
) -> Iterator[tuple[str, str, Tensor]]:
    """What a weight may have become: the fault, its words, and the other numbers."""
    if name.rpartition(".")[2].endswith("bias"):
        yield "bias-missing", f"no {name}", weight * 0
        yield "bias-doubled", f"{name} added twice", weight * 2
        yield "bias-sign", f"{name} subtracted", -weight
    if weight.ndim != 2:
        return
    if weight.shape[0] == weight.shape[1]:
        yield "weight-transposed", f"the {name} transposed", weight.T
    order_R = port.order_of(weight)
    if order_R is not None and bool((order_R.diff() < 0).any()):
        yield "rows-permuted", f"rows of the {name} in another order", weight[order_R]
    if order_R is None:
        for matrix_RC in foreign.values():
            for theirs in readings(matrix_RC, weight.shape):
                kind, words = relation(theirs, weight)
                yield kind, f"the {name} {words}", theirs


def _edit(
    layer: LayerSpec,
    part: str,
    opaque: OpaquePart,
    name: str,
    kind: str,
    got: str,
    changed: Tensor,
) -> Edit:
    after = replace(opaque, weights={**opaque.weights, name: changed})

    def apply(each: LayerSpec) -> LayerSpec:
        if part == "layer":
            return replace(each, opaque=after)
        fields: dict[str, Any] = {part: replace(getattr(each, part), opaque=after)}
        return replace(each, **fields)

    module = f"{opaque.module}.{name}".rpartition(".")[0]
    return Edit(name=kind, part=part, got=got, fix=BACK, module=module, cost=2, on_layer=apply)
