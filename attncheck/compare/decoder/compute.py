"""Compute what a `DecoderSpec` says, part by part, in float64.

Axes: B batch, T positions, S keys, C channels, H query heads, G key/value heads, D head width,
P pairs, V vocabulary.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from attncheck.attention.rope import rotate
from attncheck.compare.decoder.feed_forward import activated, feed_forward, projected, unseen
from attncheck.compare.decoder.spec import (
    AttentionSpec,
    DecoderSpec,
    LayerSpec,
    NormSpec,
    RotarySpec,
    Visit,
)


def normed(norm: NormSpec | None, x: Tensor) -> Tensor:
    """A norm over the last axis; None leaves the values alone."""
    if norm is None:
        return x
    if norm.times > 1:
        x = normed(replace(norm, times=norm.times - 1), x)
    if norm.kind == "layer":
        x = x - x.mean(-1, keepdim=True)
    square = x.square().mean(-1, keepdim=True)
    x = x / (square.sqrt() + norm.eps) if norm.outside else x * torch.rsqrt(square + norm.eps)
    if norm.weight is not None:
        x = x * (norm.offset + norm.weight)
    return x if norm.bias is None else x + norm.bias


def rotated(rotary: RotarySpec, states_BHTD: Tensor, offset: int) -> Tensor:
    """States rotated by positions from `offset` on."""
    if rotary.start:
        still, moving = states_BHTD[..., : rotary.start], states_BHTD[..., rotary.start :]
        return torch.cat([still, rotated(replace(rotary, start=0), moving, offset)], -1)
    length, width = states_BHTD.shape[2], rotary.width
    positions_T1 = torch.arange(length, dtype=torch.float64)[:, None] + offset
    angles_TR = torch.cat([positions_T1 * rotary.inv_freq_P] * 2, -1) * rotary.direction
    cos, sin = angles_TR.cos() * rotary.gain, angles_TR.sin() * rotary.gain
    for _ in range(rotary.times if width <= states_BHTD.shape[-1] else 0):
        states_BHTD = rotate(states_BHTD, cos, sin, rotary.pairing)
    return states_BHTD


def _heads(flat_BTC: Tensor, width: int) -> Tensor:
    batch, length = flat_BTC.shape[:2]
    return flat_BTC.view(batch, length, -1, width).transpose(1, 2)


def _flat(states_BHTD: Tensor) -> Tensor:
    return states_BHTD.transpose(1, 2).flatten(2)


def _side(spec: AttentionSpec, which: str, flat_BTC: Tensor, visit: Visit) -> Tensor:
    """Queries or keys, normed and rotated."""
    norm = spec.query_norm if which == "query" else spec.key_norm
    rotary = spec.rotary

    def with_norm(states_BHTD: Tensor) -> Tensor:
        if norm is None:
            return states_BHTD
        if spec.whole_norm:
            return _heads(normed(norm, _flat(states_BHTD)), spec.width)
        return normed(norm, states_BHTD)

    def with_rotation(states_BHTD: Tensor) -> Tensor:
        if rotary is None or not (rotary.on_query if which == "query" else rotary.on_key):
            return states_BHTD
        offset = rotary.query_offset if which == "query" else rotary.key_offset
        return rotated(rotary, states_BHTD, offset)

    states_BHTD = _heads(flat_BTC, spec.width)
    steps = (with_norm, with_rotation)
    for step in steps if rotary is None or rotary.after_norm else reversed(steps):
        states_BHTD = step(states_BHTD)
        visit(f"{which} {step.__name__}", states_BHTD)
    return states_BHTD


def behind(length: int) -> Tensor:
    """behind_TS: how many positions each key stands behind each query."""
    return torch.arange(length)[:, None] - torch.arange(length)[None]


def allowed(spec: AttentionSpec, length: int) -> Tensor:
    """allowed_TS: which keys each query reads."""
    behind_TS = behind(length)
    allowed_TS = behind_TS >= -spec.ahead
    return allowed_TS if spec.reach is None else allowed_TS & (behind_TS < spec.reach)


def _weights(spec: AttentionSpec, scores_BHTS: Tensor) -> Tensor:
    """The softmax over the keys that may be read, and over the sink."""
    if spec.cap:
        scores_BHTS = torch.tanh(scores_BHTS / spec.cap) * spec.cap
    allowed_TS = allowed(spec, scores_BHTS.shape[-1])
    if spec.slopes is not None:
        scores_BHTS = scores_BHTS + spec.slopes[:, None, None] * behind(len(allowed_TS)).neg()
    scores_BHTS = scores_BHTS.masked_fill(~allowed_TS, -torch.inf)
    if spec.sinks is None:
        return scores_BHTS.softmax(-1).nan_to_num(0.0)
    sinks_H111 = spec.sink_sign * spec.sinks[:, None, None]
    sinks_BHT1 = sinks_H111.expand(len(scores_BHTS), -1, scores_BHTS.shape[2], 1)
    return torch.cat([scores_BHTS, sinks_BHT1], -1).softmax(-1)[..., :-1]


def projections_of(spec: AttentionSpec, x_BTC: Tensor, visit: Visit = unseen) -> dict[str, Tensor]:
    """Queries, keys and values before they are split into heads."""
    flat = {}
    for which in ("query", "key", "value"):
        latent = spec.query_latent if which == "query" else spec.key_latent
        given_BTC = x_BTC
        if latent is not None:
            given_BTC = normed(latent.norm, projected(latent.down, x_BTC))
            if which != "value":
                visit(f"{which} latent", given_BTC)
        flat[which] = projected(getattr(spec, which), given_BTC)
        visit(which, flat[which])
    if spec.shared_key is not None:
        shared_BTR = projected(spec.shared_key, x_BTC)
        visit("shared key", shared_BTR)
        own_BTHN = flat["key"].view(*shared_BTR.shape[:2], spec.groups, -1)
        shared_BTHR = shared_BTR[:, :, None].expand(-1, -1, spec.groups, -1)
        flat["key"] = torch.cat([own_BTHN, shared_BTHR], -1).flatten(2)
    return flat


def attention(spec: AttentionSpec, x_BTC: Tensor, visit: Visit = unseen) -> Tensor:
    """The output of one layer's attention."""
    if spec.opaque is not None:
        output_BTC = spec.opaque.run(x_BTC, spec.opaque.weights, visit)
        visit("output", output_BTC)
        return output_BTC
    flat = projections_of(spec, x_BTC, visit)
    query_BHTD = _side(spec, "query", flat["query"], visit)
    key_BGTD = _side(spec, "key", flat["key"], visit)
    value_BGTD = _heads(flat["value"], spec.value_width or spec.width)
    if spec.rotary is not None and spec.rotary.on_value:
        value_BGTD = rotated(spec.rotary, value_BGTD, 0)
    times = query_BHTD.shape[1] // key_BGTD.shape[1]
    key_BHTD, value_BHTD = (
        each.repeat(1, times, 1, 1) if spec.tiled else each.repeat_interleave(times, 1)
        for each in (key_BGTD, value_BGTD)
    )
    scores_BHTS = query_BHTD @ key_BHTD.transpose(-1, -2)
    visit("raw scores", scores_BHTS)
    weights_BHTS = _weights(spec, scores_BHTS * spec.scale)
    visit("weights", weights_BHTS)
    context_BHTD = weights_BHTS @ value_BHTD
    visit("context", context_BHTD)
    flat_BTC = _flat(context_BHTD)
    if spec.unmoved:
        flat_BTC = context_BHTD.reshape(flat_BTC.shape)
    output_BTC = projected(spec.output, flat_BTC)
    visit("output", output_BTC)
    return output_BTC


def _within(visit: Visit, part: str) -> Visit:
    return lambda name, value: visit(f"{part} {name}", value)


def layer(spec: LayerSpec, x: Tensor, visit: Visit = unseen) -> Tensor:
    """The hidden states after one layer."""
    visit("input", x)
    if spec.skipped:
        return x
    if spec.opaque is not None:
        out = spec.opaque.run(x, spec.opaque.weights, visit)
        visit("layer output", out)
        return out
    first_in = x if spec.sum_norms else normed(spec.before_attention, x)
    visit("before attention", first_in)
    first = attention(spec.attention, first_in, _within(visit, "attention"))
    first = normed(spec.after_attention, first)
    visit("after attention", first)
    bases = {"input": x, "normed": first_in, "none": torch.zeros_like(x)}
    (carry, second_carry), gains = spec.carry, [spec.gain * each for each in spec.gains]
    if spec.parallel:
        second_in = normed(spec.before_mlp, x)
        visit("before mlp", second_in)
        second = normed(spec.after_mlp, feed_forward(spec.mlp, second_in, _within(visit, "mlp")))
        out = carry * bases[spec.residual] + gains[0] * first + gains[1] * second
        visit("layer output", out)
        return out
    middle = carry * bases[spec.residual] + gains[0] * first
    if spec.sum_norms:
        middle = normed(spec.before_attention, middle)
    visit("middle", middle)
    second_in = middle if spec.sum_norms else normed(spec.before_mlp, middle)
    visit("before mlp", second_in)
    second = normed(spec.after_mlp, feed_forward(spec.mlp, second_in, _within(visit, "mlp")))
    visit("after mlp", second)
    bases |= {"input": middle, "normed": second_in, "first": x}
    out = second_carry * bases[spec.second_residual] + gains[1] * second
    if spec.sum_norms:
        out = normed(spec.before_mlp, out)
    visit("layer output", out)
    return out


def embedded(spec: DecoderSpec, ids_BT: Tensor, visit: Visit = unseen) -> Tensor:
    """The hidden states before the first layer."""
    x_BTC = spec.table[ids_BT] * spec.scale
    if spec.positions is not None:
        at_T = torch.arange(ids_BT.shape[1]) + spec.position_offset
        x_BTC = x_BTC + spec.positions[at_T.clamp(0, len(spec.positions) - 1)]
    if spec.added is not None:
        x_BTC = x_BTC + spec.added
    x_BTC = normed(spec.embedding_norm, x_BTC)
    visit("embedded", x_BTC)
    return x_BTC


def head(spec: DecoderSpec, x_BTC: Tensor, visit: Visit = unseen) -> Tensor:
    """logits_BTV of the last hidden states."""
    visit("input", x_BTC)
    if spec.head_map is not None:
        x_BTC = activated(spec.head_activation, projected(spec.head_map, x_BTC))
        visit("head map", x_BTC)
    x_BTC = normed(spec.final_norm, x_BTC)
    visit("final norm", x_BTC)
    logits_BTV = projected(spec.head, x_BTC) * spec.logit_scale
    if spec.cap:
        logits_BTV = torch.tanh(logits_BTV / spec.cap) * spec.cap
    visit("logits", logits_BTV)
    return logits_BTV


def logits(spec: DecoderSpec, ids_BT: Tensor) -> Tensor:
    """logits_BTV of a whole forward."""
    x_BTC = embedded(spec, ids_BT)
    for each in spec.layers:
        x_BTC = layer(each, x_BTC)
    return head(spec, x_BTC)


def with_layer(spec: DecoderSpec, number: int, changed: LayerSpec) -> DecoderSpec:
    """The decoder with one layer replaced."""
    layers = (*spec.layers[:number], changed, *spec.layers[number + 1 :])
    return replace(spec, layers=layers)
