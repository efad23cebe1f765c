"""Queries, keys and values of a fused projection whose rows are read in another layout.

Axes: G groups (a key head with its query heads), N heads of a group, D head width, R rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attncheck.compare.decoder.spec import LayerSpec, Projection
from attncheck.compare.edits.edit import Edit
from attncheck.compare.edits.weights import projections, rows_of, weight_edit

THREE = ("query", "key", "value")
BLOCKS, BY_HEAD = "as three blocks", "interleaved by head"


def layout_edits(layer: LayerSpec) -> Iterator[Edit]:
    """Rows that stand in one layout and are read in the other."""
    spec, maps = layer.attention, projections(layer)
    if spec.shared_key is not None or spec.value_width not in (None, spec.width):
        return
    biases = [maps[each].bias is None for each in THREE]
    if len(set(biases)) > 1 or spec.heads % spec.groups:
        return
    each_R = _by_head(spec.heads // spec.groups, spec.groups, spec.width)
    for order_R, got, want in (
        (each_R, BLOCKS, BY_HEAD),
        (each_R.argsort(), BY_HEAD, BLOCKS),
    ):
        fused = Projection(
            weight=torch.cat([maps[each].weight for each in THREE])[order_R],
            bias=None if biases[0] else torch.cat([_bias(maps[each]) for each in THREE])[order_R],
            module=maps["query"].module,
        )
        sizes = [len(maps[each].weight) for each in THREE]
        parts = torch.split(torch.arange(sum(sizes)), sizes)
        changed = {each: rows_of(fused, rows) for each, rows in zip(THREE, parts, strict=True)}
        words = f"query, key and value of a fused projection taken {got}"
        fix = f"taking them {want}"
        yield weight_edit(layer, changed, "qkv-order", words, f"them {want}", fix, cost=2)


def _by_head(times: int, groups: int, width: int) -> Tensor:
    """order_R that takes rows of three blocks and lays the query heads of a group before its key
    and value.
    """
    query_GND = torch.arange(groups * times * width).view(groups, times, width)
    first = groups * times * width
    key_G1D = (first + torch.arange(groups * width)).view(groups, 1, width)
    value_G1D = key_G1D + groups * width
    return torch.cat([query_GND, key_G1D, value_G1D], 1).flatten()


def _bias(projection: Projection) -> Tensor:
    assert projection.bias is not None
    return projection.bias
