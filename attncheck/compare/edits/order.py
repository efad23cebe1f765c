"""Whole layers: one that is left out, or that has the weights of another one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from attncheck.compare.decoder.spec import LayerSpec
from attncheck.compare.edits.edit import Edit

SKIPPED = "layer-skipped"


def order_edits(
    layers: Sequence[LayerSpec], number: int, begins: Callable[[LayerSpec], bool]
) -> Iterator[Edit]:
    """A layer left out, and each other layer that `begins` as the port does in its place."""
    layer = layers[number]
    yield _edit(layer, SKIPPED, "left out", "", replace(layer, skipped=True))
    for other, theirs in enumerate(layers):
        if other != number and begins(theirs):
            got, want = f"layer {other} in its place", f"layer {number}"
            yield _edit(layer, "layers-exchanged", got, want, theirs)


def _edit(layer: LayerSpec, name: str, got: str, want: str, theirs: LayerSpec) -> Edit:
    return Edit(
        name=name,
        part="layer",
        got=got,
        want=want,
        fix=f"putting {want or 'it'} back",
        module=layer.module,
        on_layer=partial(_replaced, theirs=theirs),
    )


def _replaced(layer: LayerSpec, theirs: LayerSpec) -> LayerSpec:
    return theirs
