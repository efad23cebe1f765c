"""Edits whose number is measured in the port rather than guessed: speeds, scale, window, eps.

Axes: B batch, H heads, T positions, S keys, D head width, N blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from attncheck.compare.decoder import feed_forward
from attncheck.compare.decoder.fit_rotation import base_of, fit_rotation
from attncheck.compare.decoder.fits import cap_of
from attncheck.compare.decoder.spec import (
    AttentionSpec,
    DecoderSpec,
    LayerSpec,
    NormSpec,
    RotarySpec,
)
from attncheck.compare.edits import attention, rotary
from attncheck.compare.edits.biases import LEAST_WEIGHT, centred, measured_slopes
from attncheck.compare.edits.edit import Edit
from attncheck.compare.edits.norms import eps_edits, final_eps_edit
from attncheck.compare.edits.outer import logit_cap_edit
from attncheck.compare.edits.sums import measured_sums
from attncheck.compare.edits.weights import projections, scaled_edit
from attncheck.compare.flow import FlowTape
from attncheck.judge.projections import blocks_of

Nodes = dict[str, Tensor]


def measured_edits(layer: LayerSpec, nodes: Nodes, tape: FlowTape, slack: float) -> Iterator[Edit]:
    """Every edit that the port's own values suggest, where this layer's values are not found."""
    starts = tape.find(nodes["input"], slack) if "input" in nodes else []
    place = starts[0].place if starts else 0
    yield from _rotations(layer, nodes, tape, slack, place)
    yield from _from_weights(layer.attention, nodes, tape, slack, place)
    yield from _sizes(layer, nodes, tape, slack)
    yield from _eps(layer, nodes, tape, place)
    yield from measured_sums(layer, nodes, tape, slack, place)


def _rotations(
    layer: LayerSpec, nodes: Nodes, tape: FlowTape, slack: float, place: int
) -> Iterator[Edit]:
    own = layer.attention.rotary
    before_BHTD = nodes.get("attention key with_norm")
    after_BHTD = nodes.get("attention key with_rotation")
    if own is None or before_BHTD is None or after_BHTD is None or not own.after_norm:
        return
    if own.start or tape.find(after_BHTD, slack):
        return
    found = rotation_in(tape, before_BHTD, own, slack, place)
    if found is not None:
        yield from _speeds(layer, own, found)


ABSOLUTE = 1e-7
"""How far, in radians per position, speeds are measured apart in a port that rotates in float32."""


def close(left_P: Tensor, right_P: Tensor) -> bool:
    """Whether two lists of speeds are the same as far as they can be measured."""
    return bool(((left_P - right_P).abs() <= 1e-5 * right_P.abs() + ABSOLUTE).all())


def _speeds(layer: LayerSpec, own: RotarySpec, found: RotarySpec) -> Iterator[Edit]:
    """The edit to measured speeds: of the width, one factor on all, the base, or simply others."""
    changed = replace(own, inv_freq_P=found.inv_freq_P)
    rotating = 2 * int((found.inv_freq_P.abs() > ABSOLUTE).sum())
    if found.width != own.width or (rotating < own.width and bool((own.inv_freq_P > 1e-5).all())):
        got = f"{min(rotating, found.width)} rotated channels"
        if rotating == own.width:
            got = f"rotated channels that are not the first {rotating}"
            yield rotary.edit(layer, changed, "rotary-channels", got, "the first")
            return
        yield rotary.edit(layer, changed, "rotary-width", got, f"{own.width}")
        return
    factor = float(found.inv_freq_P[0] / own.inv_freq_P[0])
    if close(found.inv_freq_P, own.inv_freq_P):
        return
    if close(found.inv_freq_P, factor * own.inv_freq_P):
        exact = replace(own, inv_freq_P=own.inv_freq_P * float(f"{factor:.6g}"))
        got = f"positions multiplied by {factor:.5g} before the rotation"
        for each in (changed, exact):
            yield rotary.edit(layer, each, "rotary-scaling", got, fix="taking the factor out")
        return
    divisor = float((own.scheme or {}).get("factor", 1.0))
    base, stated = base_of(found), rotary.stated_base(own)
    if base is None and divisor != 1.0:
        base = base_of(replace(found, inv_freq_P=found.inv_freq_P * divisor))
    if base is not None and stated is not None and abs(base / stated - 1) > 1e-4:
        yield from rotary.base_edits(layer, own, changed, base, stated)
        return
    fix = "putting the reference's speeds in"
    yield rotary.edit(layer, changed, "rotary-scaling", "other rotary speeds", fix=fix, cost=3)


def rotation_in(
    tape: FlowTape, before_BHTD: Tensor, own: RotarySpec, slack: float, place: int
) -> RotarySpec | None:
    """The rotation of some states in the port, whose rows may be permuted to rotate neighbours; its
    speeds are in the order of the reference's channels.
    """
    batch, heads, length, width = before_BHTD.shape
    part = before_BHTD[..., : own.width]
    turned = torch.stack(part.chunk(2, -1), -1).flatten(-2)
    neighbours_BHTD = torch.cat([turned, before_BHTD[..., own.width :]], -1)
    size = float(before_BHTD.square().sum())
    for value in tape.after(place, before_BHTD.numel()):
        assert value.kept is not None
        gained = float(value.kept.square().sum()) / own.gain**2
        if abs(gained - size) > 10 * slack * size:
            continue
        alone = batch == 1 and value.kept.shape[0] == length  # a port of single sequences
        kept = value.kept[None] if alone else value.kept
        for blocks_BNTD in blocks_of(kept, batch, length, width):
            if blocks_BNTD.shape[1] != heads:
                continue
            found = fit_rotation(before_BHTD, blocks_BNTD, max(slack, 1e-9))
            if found is not None and (found.pairing == own.pairing or own.pairing == "half"):
                return found
            found = fit_rotation(neighbours_BHTD, blocks_BNTD, max(slack, 1e-9))
            if found is not None and found.pairing == "pairs":
                rest = torch.zeros(max(0, len(own.inv_freq_P) - len(found.inv_freq_P)))
                speeds_P = torch.cat([found.inv_freq_P, rest.double()])
                return replace(found, inv_freq_P=speeds_P, pairing=own.pairing)
    return None


def _from_weights(
    spec: AttentionSpec, nodes: Nodes, tape: FlowTape, slack: float, place: int
) -> Iterator[Edit]:
    """The scale and the readable keys, from the attention weights of the port."""
    raw_BHTS = nodes.get("attention raw scores")
    if raw_BHTS is None or tape.find(nodes["attention weights"], slack):
        return
    for value in tape.after(place, raw_BHTS.numel()):
        assert value.kept is not None
        if value.kept.shape[-1] != raw_BHTS.shape[-1] or value.kept.shape[-2] != raw_BHTS.shape[-2]:
            continue
        weights_BHTS = value.kept.reshape(raw_BHTS.shape)
        sums_BHT = weights_BHTS.sum(-1)
        if float(weights_BHTS.min()) < 0 or float((sums_BHT - 1).abs().max()) > 1e-3:
            continue
        yield from _mask_in(spec, weights_BHTS)
        yield from measured_slopes(spec, raw_BHTS, weights_BHTS, slack)
        yield from _scale_in(spec, raw_BHTS, weights_BHTS, slack)
        yield from _cap_in(spec, raw_BHTS, weights_BHTS, slack)


def _mask_in(spec: AttentionSpec, weights_BHTS: Tensor) -> Iterator[Edit]:
    seen_TS = (weights_BHTS > 0).flatten(0, 1).any(0)
    behind_TS = torch.arange(len(seen_TS))[:, None] - torch.arange(len(seen_TS))[None]
    ahead, back = int(-behind_TS[seen_TS].min()), int(behind_TS[seen_TS].max())
    reach = None if back >= len(seen_TS) - 1 else back + 1
    expected_TS = (behind_TS >= -ahead) & (behind_TS <= back)
    if not torch.equal(seen_TS, expected_TS) or (reach, max(ahead, 0)) == (spec.reach, 0):
        return
    whole = ahead >= len(seen_TS) - 1
    yield attention.mask_edit(spec, reach, 1 << 20 if whole else ahead)


def _scale_in(
    spec: AttentionSpec, raw_BHTS: Tensor, weights_BHTS: Tensor, slack: float
) -> Iterator[Edit]:
    """The factor s with log weights = s * scores + a number for each query."""
    both = weights_BHTS > LEAST_WEIGHT
    logs = centred(weights_BHTS.clamp_min(1e-300).log(), both)
    raw = centred(raw_BHTS, both)
    scale = float((raw * logs).sum() / raw.square().sum().clamp_min(1e-300))
    left = float((logs - scale * raw).abs().max())
    if left <= 1e3 * slack * float(logs.abs().max()) and abs(scale / spec.scale - 1) > 1e-6:
        yield attention.scale_edit(spec, scale)


def _cap_in(
    spec: AttentionSpec, raw_BHTS: Tensor, weights_BHTS: Tensor, slack: float
) -> Iterator[Edit]:
    """The cap c with log weights = c * tanh(scores / c) + a number, by bisection of c."""
    both = weights_BHTS > LEAST_WEIGHT
    logs, scores = centred(weights_BHTS.clamp_min(1e-300).log(), both), raw_BHTS * spec.scale
    size = float(scores[both].abs().max())

    def spread(cap: float) -> Tensor:
        return centred(torch.tanh(scores / cap) * cap, both)

    low, high = 1e-2 * size, 1e3 * size  # a larger cap spreads the scores more
    for _ in range(100):
        middle = (low * high) ** 0.5
        wider = float((spread(middle) * logs).sum()) < float(logs.square().sum())
        low, high = (middle, high) if wider else (low, middle)
    left = float((spread(high) - logs).abs().max())
    cap = float(f"{high:.9g}")
    if left <= 1e4 * slack * float(logs.abs().max()) and cap != spec.cap and high < 900 * size:
        yield attention.cap_edit(spec, cap, 1)


def measured_behind(
    spec: DecoderSpec, nodes: Nodes, logits_BTV: Tensor, tape: FlowTape, slack: float
) -> Iterator[Edit]:
    """The cap on logits and the eps of the final norm, as the port has them."""
    plain_BTV = feed_forward.projected(spec.head, nodes["final norm"]) * spec.logit_scale
    both = min(plain_BTV.shape[-1], logits_BTV.shape[-1])
    cap = cap_of(plain_BTV[..., :both], logits_BTV[..., :both], max(slack, 1e-7))
    if cap is not None and cap != spec.cap and cap < 1e5:
        yield logit_cap_edit(spec, cap)
    norm = spec.final_norm
    starts = tape.find(nodes["input"], slack)
    eps = norm and eps_in(norm, nodes["input"], tape, starts[0].place if starts else 0)
    if norm and eps is not None and abs(eps - norm.eps) > 1e-3 * norm.eps:
        yield final_eps_edit(spec, norm, float(f"{eps:.4g}"))


OUTPUTS = {
    "attention query": "query",
    "attention key": "key",
    "attention value": "value",
    "attention output": "output",
    "mlp gate": "gate",
    "mlp up": "up",
    "mlp output": "down",
}


def _sizes(layer: LayerSpec, nodes: Nodes, tape: FlowTape, slack: float) -> Iterator[Edit]:
    maps = projections(layer)
    for node, name in OUTPUTS.items():
        if node in nodes and name in maps and not tape.find(nodes[node], slack):
            for factor in tape.factors(nodes[node], slack)[:3]:
                yield scaled_edit(layer, name, float(f"{factor:.9g}"))


NORM_INPUTS = {
    "before_attention": "input",
    "after_attention": "attention output",
    "before_mlp": "middle",
    "after_mlp": "mlp output",
}


def _eps(layer: LayerSpec, nodes: Nodes, tape: FlowTape, place: int) -> Iterator[Edit]:
    """The eps of a norm, of all norms of the layer and of this one alone."""
    for field, node in NORM_INPUTS.items():
        norm = getattr(layer, field)
        x = nodes.get("input" if layer.parallel and node == "middle" else node)
        eps = None if norm is None or x is None else eps_in(norm, x, tape, place)
        if norm is not None and eps is not None and abs(eps - norm.eps) > 1e-3 * norm.eps:
            yield from eps_edits(layer, field, float(f"{eps:.4g}"))


def eps_in(norm: NormSpec, x: Tensor, tape: FlowTape, place: int) -> float | None:
    """The eps with which some value of the port is this norm of x."""
    centred = x - x.mean(-1, keepdim=True) if norm.kind == "layer" else x
    scaled = centred if norm.weight is None else centred * (norm.offset + norm.weight)
    for value in tape.after(place, x.numel()):
        assert value.kept is not None
        if value.kept.shape[-1] != x.shape[-1]:
            continue
        got = value.kept.reshape(x.shape)
        got = got if norm.bias is None else got - norm.bias
        ratio = (got * scaled).sum(-1) / scaled.square().sum(-1)
        left = (got - ratio[..., None] * scaled).abs().max()
        if float(left) > 1e-9 * float(got.abs().max()) or float(ratio.min()) <= 0:
            continue
        eps = 1 / ratio.square() - centred.square().mean(-1)
        if float(eps.max() - eps.min()) <= 1e-3 * float(eps.abs().max()):
            return float(eps.mean())
    return None
