"""Feed-forward blocks and experts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attncheck.compare.decoder.feed_forward import ACTIVATIONS
from attncheck.compare.decoder.spec import ExpertsSpec, LayerSpec, MlpSpec
from attncheck.compare.edits.edit import ROUNDING_ONLY, Edit


def block_edits(layer: LayerSpec) -> Iterator[Edit]:
    """Every edit of a layer's feed-forward block."""
    spec = layer.mlp
    yield from _inner(spec)
    if isinstance(spec, ExpertsSpec):
        yield from _routing(spec)


def _on_blocks(change: Callable[[MlpSpec], MlpSpec]) -> Callable[[LayerSpec], LayerSpec]:
    def apply(layer: LayerSpec) -> LayerSpec:
        if isinstance(layer.mlp, MlpSpec):
            return replace(layer, mlp=change(layer.mlp))
        experts = tuple(change(each) for each in layer.mlp.experts)
        return replace(layer, mlp=replace(layer.mlp, experts=experts))

    return apply


def _edit(
    module: str, name: str, got: str, want: str, apply: Any, fix: str = "", cost: int = 1
) -> Edit:
    return Edit(
        name=name, part="mlp", got=got, want=want, fix=fix, module=module, cost=cost, on_layer=apply
    )


def _inner(spec: MlpSpec | ExpertsSpec) -> Iterator[Edit]:
    first = spec if isinstance(spec, MlpSpec) else spec.experts[0]
    for name in ACTIVATIONS:
        if name != first.activation:

            def change(each: MlpSpec, name: str = name) -> MlpSpec:
                return replace(each, activation=name)

            yield _edit(spec.module, "activation", name, first.activation, _on_blocks(change))
    if first.gate is None:
        return
    both = _on_blocks(partial(replace, up_activation=first.activation))
    got, want = f"{first.activation} of gate and up", "it of the gate alone"
    yield _edit(spec.module, "activation", got, want, both)

    def exchanged(each: MlpSpec) -> MlpSpec:
        return replace(each, activated="up" if each.activated == "gate" else "gate")

    yield _edit(
        spec.module,
        "gate-up-exchanged",
        "gate and up exchanged",
        "",
        _on_blocks(exchanged),
        "exchanging them back",
    )
    yield from _layouts(spec, first)
    if first.up_offset:
        got, want = "up values as they are", f"{first.up_offset:g} plus them"
        yield _edit(
            spec.module, "up-offset", got, want, _on_blocks(partial(replace, up_offset=0.0))
        )
    if first.limit is not None:
        got = "no limit on gate and up"
        change = partial(replace, limit=None)
        yield _edit(spec.module, "gate-limit", got, f"{first.limit:g}", _on_blocks(change))


def _layouts(spec: MlpSpec | ExpertsSpec, first: MlpSpec) -> Iterator[Edit]:
    """Gate and up of one fused weight, whose rows stand in one order and are taken in another."""
    half = len(first.up.weight)
    rows = torch.arange(2 * half)
    in_turn = torch.cat([rows[::2], rows[1::2]])
    for order_R, got, want in (
        (in_turn, "in turn", "as two halves"),
        (in_turn.argsort(), "as two halves", "in turn"),
    ):

        def change(each: MlpSpec, order_R: Tensor = order_R) -> MlpSpec:
            assert each.gate is not None
            gate, up = each.gate, each.up
            weight_RC = torch.cat([gate.weight, up.weight])[order_R]
            bias = None if gate.bias is None or up.bias is None else torch.cat([gate.bias, up.bias])
            biases = (None, None) if bias is None else bias[order_R].chunk(2)
            parts = zip((gate, up), weight_RC.chunk(2), biases, strict=True)
            gate, up = (replace(old, weight=w, bias=b) for old, w, b in parts)
            return replace(each, gate=gate, up=up)

        words = f"rows of gate and up in one weight taken {got}"
        fix = f"taking them {want}"
        apply = _on_blocks(change)
        yield _edit(spec.module, "gate-up-layout", words, f"them {want}", apply, fix)


def _routing(spec: ExpertsSpec) -> Iterator[Edit]:
    for count in range(1, len(spec.experts) + 1):
        if count != spec.count:
            yield _routed(
                spec,
                "router-experts",
                f"{count} experts for each token",
                f"{spec.count}",
                count=count,
            )
    words = {
        True: "weights of the chosen experts that add up to 1",
        False: "weights of the chosen experts as they are",
    }
    plain = {
        "softmax first": "softmax before the top k",
        "top-k first": "top k before the softmax",
        "sigmoid": "sigmoid scores",
    }
    # a softmax that is normalised over the chosen is a softmax after the top k: one of them is kept
    forms = [
        ("softmax first", True),
        ("softmax first", False),
        ("sigmoid", True),
        ("sigmoid", False),
    ]
    own = (spec.order, spec.normalised) if spec.order != "top-k first" else ("softmax first", True)
    for order, normalised in forms:
        if (order, normalised) == own:
            continue
        same = order == own[0]
        name = "router-normalisation" if same else "router-order"
        got, want = (words[normalised], "") if same else (plain[order], plain[own[0]])
        if order == "sigmoid" and not same:
            got += ", normalised" if normalised else ""
        yield _routed(spec, name, got, want, order=order, normalised=normalised)
    yield from _chosen(spec)
    yield _routed(
        spec, "router-input", "weights of the experts on their input", "their output", on_input=True
    )


def _chosen(spec: ExpertsSpec) -> Iterator[Edit]:
    """How experts are chosen beside their scores, the factor on them, and the shared expert."""
    if spec.correction is not None:
        got = "no correction of the scores that experts are chosen by"
        yield _routed(spec, "router-bias", got, "", correction=None)
        got = "the correction of scores in the experts' weights as well"
        yield _routed(spec, "router-bias", got, "", weighted=not spec.weighted)
    if spec.groups > 1:
        # both are in use, and differ only where the chosen groups have scores below zero
        yield _routed(spec, ROUNDING_ONLY, "zeros for groups left out", "", left_out=0.0)
        got = "experts chosen from all groups"
        want = f"{spec.kept} of {spec.groups} groups"
        yield _routed(spec, "router-groups", got, want, groups=1)
        for kept in range(1, spec.groups):
            if kept != spec.kept:
                yield _routed(spec, "router-groups", f"{kept} groups", want, kept=kept)
        other = 1 if spec.best != 1 else 2
        got = f"groups ranked by their best {other}"
        yield _routed(spec, "router-groups", got, f"by their best {spec.best}", best=other)
    if spec.gain != 1.0:
        got = "no factor on the weights of the experts"
        yield _routed(spec, "router-scale", got, f"{spec.gain:.6g}", gain=1.0)
    if spec.shared is not None:
        got, fix = "no shared expert", "adding it"
        yield _routed(spec, "shared-expert-missing", got, "", fix, shared=None)
    if spec.shared_gate is not None:
        got, fix = "no gate on the shared expert", "putting the gate in"
        yield _routed(spec, "shared-expert-gate", got, "", fix, shared_gate=None)


def _routed(
    spec: ExpertsSpec, name: str, got: str, want: str, fix: str = "", **changes: Any
) -> Edit:
    def apply(layer: LayerSpec) -> LayerSpec:
        assert isinstance(layer.mlp, ExpertsSpec)
        return replace(layer, mlp=replace(layer.mlp, **changes))

    return _edit(spec.module, name, got, want, apply, fix)
