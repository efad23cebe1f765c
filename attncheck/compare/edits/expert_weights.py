"""Experts in another order, and one expert's matrix replaced by one that only the port has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from torch import Tensor

from attncheck.compare.decoder.spec import ExpertsSpec, LayerSpec
from attncheck.compare.edits.edit import Edit
from attncheck.compare.edits.weights import MLP, readings, relation


def expert_edits(layer: LayerSpec) -> Iterator[Edit]:
    """Experts whose order is not that of the router's scores: reversed, moved on by one, or two
    neighbours exchanged.
    """
    if not isinstance(layer.mlp, ExpertsSpec):
        return
    total = len(layer.mlp.experts)
    plain = list(range(total))
    orders = {tuple(plain[::-1]): "in reverse order"}
    for step in (1, -1):
        moved = (*plain[step:], *plain[:step])
        orders.setdefault(moved, f"moved by {step:+d} against the router's scores")
    for first in range(total - 1):
        pair = [*plain[:first], first + 1, first, *plain[first + 2 :]]
        orders.setdefault(tuple(pair), f"{first} and {first + 1} exchanged")
    for order, words in orders.items():
        experts = tuple(layer.mlp.experts[each] for each in order)
        mlp = replace(layer.mlp, experts=experts)
        yield Edit(
            name="expert-order",
            part="mlp",
            got=f"experts {words}",
            fix="putting them back",
            module=layer.mlp.module,
            cost=2,
            on_layer=partial(_with_mlp, mlp=mlp),
        )


def _with_mlp(layer: LayerSpec, mlp: ExpertsSpec) -> LayerSpec:
    return replace(layer, mlp=mlp)


def expert_weight_edits(layer: LayerSpec, foreign: dict[str, Tensor]) -> Iterator[Edit]:
    """Every such edit of a layer; `foreign` are matrices of the port alone."""
    if not isinstance(layer.mlp, ExpertsSpec) or not foreign:
        return
    for number, expert in enumerate(layer.mlp.experts):
        for name in MLP:
            each = getattr(expert, name)
            for matrix_RC in foreign.values() if each is not None else ():
                for theirs in readings(matrix_RC, each.weight.shape):
                    yield _expert_edit(layer, number, name, theirs)


def _expert_edit(layer: LayerSpec, number: int, name: str, theirs: Tensor) -> Edit:
    assert isinstance(layer.mlp, ExpertsSpec)
    experts = layer.mlp.experts
    each = getattr(experts[number], name)
    changed = replace(experts[number], **{name: replace(each, weight=theirs)})
    kind, words = relation(theirs, each.weight)
    mlp = replace(layer.mlp, experts=(*experts[:number], changed, *experts[number + 1 :]))
    return Edit(
        name=kind,
        part="mlp",
        got=f"the {name} weight of expert {number} {words}",
        fix="putting the reference's weight in",
        module=layer.mlp.module,
        on_layer=lambda layer: replace(layer, mlp=mlp),
    )
