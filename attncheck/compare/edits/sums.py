"""How a layer adds its blocks up: what each is added to, in what order, and with what factors.

Axes: B batch, T positions, C channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attncheck.compare.decoder.spec import LayerSpec
from attncheck.compare.edits.edit import Edit, Fields
from attncheck.compare.flow import FlowTape

RESIDUALS = {"input": "the layer's input", "normed": "the normed input", "none": "nothing"}
SECOND = {
    "input": "the sum after the attention",
    "normed": "the normed input",
    "none": "nothing",
    "first": "the layer's input",
}
ORDER = {True: "attention and feed-forward block side by side", False: "one block after the other"}
GAINS = (0.5, 2.0, 0.1)
NOTHING = 1e-3
"""A factor this small is none: what it multiplies can hardly be told from rounding."""


def _layer_edit(
    layer: LayerSpec, name: str, got: str, want: str, cost: int = 1, **changes: Any
) -> Edit:
    return Edit(
        name=name,
        part="layer",
        got=got,
        want=want,
        fix="putting the sum right" if name.startswith("residual") else "",
        module=layer.module,
        cost=cost,
        on_layer=lambda each: replace(each, **changes),
    )


def sum_edits(layer: LayerSpec) -> Iterator[Edit]:
    """Every edit of the sums around a layer's blocks."""
    for kind, words in RESIDUALS.items():
        if kind != layer.residual:
            got, want = f"the attention's output added to {words}", RESIDUALS[layer.residual]
            yield _layer_edit(layer, "residual", got, want, residual=kind)
    for kind, words in {} if layer.parallel else SECOND.items():
        if kind != layer.second_residual:
            got, want = f"the feed-forward block's output added to {words}", SECOND["input"]
            yield _layer_edit(layer, "residual", got, want, second_residual=kind)
    for gain in (1.0, *GAINS):
        if gain != layer.gain:
            got = f"blocks multiplied by {gain:g}"
            yield _layer_edit(layer, "residual-scale", got, f"{layer.gain:g}", 3, gain=gain)
    yield from _parallel(layer)


def _parallel(layer: LayerSpec) -> Iterator[Edit]:
    got, want = ORDER[not layer.parallel], ORDER[layer.parallel]
    if layer.parallel:
        yield _layer_edit(layer, "parallel-block", got, want, parallel=False)
        return
    first: Fields = {"before_mlp": layer.before_attention}
    yield _layer_edit(layer, "parallel-block", got, want, parallel=True)
    yield _layer_edit(layer, "parallel-block", f"{got}, on one norm", want, parallel=True, **first)


def measured_sums(
    layer: LayerSpec, nodes: dict[str, Tensor], tape: FlowTape, slack: float, place: int
) -> Iterator[Edit]:
    """Sums of the port that take what goes into them with other factors, fitted to its values."""
    if layer.sum_norms or layer.parallel:
        return
    sums = (
        ("middle", "after attention", {"input": "input", "before attention": "normed"}),
        (
            "layer output",
            "after mlp",
            {"middle": "input", "before mlp": "normed", "input": "first"},
        ),
    )
    for number, (total, branch, bases) in enumerate(sums):
        if total not in nodes or tape.find(nodes[total], slack):
            continue
        for base, kind in bases.items():
            for carry, gain in _fitted(nodes[base], nodes[branch], tape, slack, place):
                yield from _factored(layer, number, kind, carry, gain)


def _fitted(
    base_BTC: Tensor, branch_BTC: Tensor, tape: FlowTape, slack: float, place: int
) -> list[tuple[float, float]]:
    """The factors a and b with which values of the port are a * base + b * branch."""
    parts_N2 = torch.stack([base_BTC.flatten(), branch_BTC.flatten()], -1)
    gram_22 = parts_N2.T @ parts_N2
    found: list[tuple[float, float]] = []
    for value in tape.after(place, base_BTC.numel()):
        assert value.kept is not None
        if value.kept.shape[-1] != base_BTC.shape[-1]:
            continue
        got_N = value.kept.flatten()
        factors_2 = torch.linalg.lstsq(gram_22, (parts_N2.T @ got_N)[:, None]).solution[:, 0]
        left = float((got_N - parts_N2 @ factors_2).abs().max())
        carry, gain = (float(f"{each:.7g}") for each in factors_2.tolist())
        exact = left <= 10 * slack * float(got_N.abs().max())
        if exact and min(abs(carry), abs(gain)) > NOTHING and (carry, gain) not in found:
            found.append((carry, gain))
    return found


def _factored(
    layer: LayerSpec, number: int, kind: str, carry: float, gain: float
) -> Iterator[Edit]:
    """A sum with measured factors: of both blocks alike, then of this one alone."""
    field = ("residual", "second_residual")[number]
    right = layer.carry[number], layer.gain * layer.gains[number]
    if max(abs(carry - right[0]), abs(gain - right[1])) < 1e-6:
        return
    block = ("attention", "feed-forward block")[number]
    words = (RESIDUALS if number == 0 else SECOND)[kind]
    carries, gains = list(layer.carry), list(layer.gains)
    carries[number], gains[number] = carry, gain / layer.gain
    changed: Fields = {field: kind, "carry": tuple(carries), "gains": tuple(gains)}
    if abs(carry - right[0]) < 1e-6 and getattr(layer, field) == kind:
        got, want = f"the {block}'s output multiplied by {gain:.6g}", f"{right[1]:.6g}"
    else:
        got = f"{carry:.6g} times {words} plus {gain:.6g} times the {block}'s output"
        want = f"{right[0]:.6g} and {right[1]:.6g}"
    both: Fields = {"carry": (carry, carry), "gains": (gain / layer.gain,) * 2}
    if number == 0 and kind == layer.residual:
        all_got = got.replace("the attention's output", "each block's output")
        all_got = all_got.replace("the layer's input", "what it is added to")
        yield _layer_edit(layer, "residual-scale", all_got, want, 1, **both)
    yield _layer_edit(layer, "residual-scale", got, want, 1, **changed)
