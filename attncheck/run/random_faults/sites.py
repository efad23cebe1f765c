"""Where a model has room for faults: attention modules, cached tensors, modules that return hidden
states.

Axes: B batch, H heads, T positions, S key positions, D head width, W hidden width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn

from attncheck.attention.call import AttentionCall
from attncheck.attention.rope import inv_freq_buffers
from attncheck.core.errors import CannotInject, Unsupported
from attncheck.faults.engine.injection import decoder_layers, filled_cache
from attncheck.model.caches import CachedTensor, key_values, states
from attncheck.model.forward_spec import counting
from attncheck.model.subject import Subject
from attncheck.numerics.divergence import beyond
from attncheck.numerics.hooks import hooked
from attncheck.run.random_faults.changes import Rotary
from attncheck.run.random_faults.upstream import homes

ROUNDINGS = 1e-5


@final
@dataclass(frozen=True, kw_only=True)
class AttentionSite:
    """One attention module of the decoder: its heads, and whether it reads an encoder."""

    module: str
    heads: int
    kv_heads: int
    cross: bool
    caveat: bool


@final
@dataclass(frozen=True, kw_only=True)
class Sites:
    """All that can be changed in one model."""

    subject: Subject
    attention: tuple[AttentionSite, ...]
    hidden: tuple[str, ...]
    stored: tuple[int, ...]
    states: tuple[int, ...]
    upstream: bool
    steps: bool
    positions: bool
    length: int
    rotary: dict[str, Rotary]
    names: dict[int, str]


def sites_of(subject: Subject) -> Sites:
    """Look at a healthy model: one forward and one filled cache."""
    cached, kept = _cached(subject)
    attention = _attention(subject)
    return Sites(
        subject=subject,
        attention=attention,
        hidden=_hidden(subject),
        stored=cached,
        states=kept,
        upstream=bool(subject.can.kernel) and bool(homes(subject.model)),
        steps=bool(subject.can.cache),
        positions=bool(subject.can.reads_positions),
        length=subject.inputs.length,
        rotary=_rotary(subject, attention),
        names={id(module): name for name, module in subject.model.named_modules()},
    )


def _cached(subject: Subject) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The layers that cache keys and values, and those that keep states."""
    try:
        cache = filled_cache(subject)
    except Unsupported:
        return (), ()
    return _layers(key_values(cache)), _layers(states(cache))


def _layers(tensors: list[CachedTensor]) -> tuple[int, ...]:
    return tuple(sorted({each.layer for each in tensors if each.layer is not None}))


def _attention(subject: Subject) -> tuple[AttentionSite, ...]:
    names = {id(module): name for name, module in subject.model.named_modules()}
    length = subject.inputs.length

    def keep(call: AttentionCall) -> AttentionSite | None:
        if call.query_BHTD.shape[2] != length:
            return None
        return AttentionSite(
            module=names.get(id(call.module), ""),
            heads=call.query_BHTD.shape[1],
            kv_heads=call.key_BGSD.shape[1],
            cross=call.key_BGSD.shape[2] != length,
            caveat=bool(call.caveat),
        )

    try:
        found = subject.record_calls(subject.inputs.tokens, keep)
    except Unsupported:
        return ()
    return tuple(dict.fromkeys(site for site in found if site is not None and site.module))


def _hidden(subject: Subject) -> tuple[str, ...]:
    """Decoder layers, and their children, that return (B, T, W) hidden states."""
    try:
        layers = decoder_layers(subject)
    except CannotInject:
        return ()
    names = {id(module): name for name, module in subject.model.named_modules()}
    candidates = [each for layer in layers for each in (layer, *layer.children())]
    found: dict[str, None] = {}

    def hook(module: nn.Module, args: Any, output: Any) -> None:
        state = output[0] if isinstance(output, tuple) and output else output
        if isinstance(state, Tensor) and state.ndim == 3 and state.shape[1] == length:
            found[names[id(module)]] = None

    length = subject.inputs.length
    with hooked(each.register_forward_hook(hook) for each in candidates), torch.no_grad():
        subject.passes.call(subject.inputs.tokens, use_cache=False)
    return tuple(found)


def _rotary(subject: Subject, attention: tuple[AttentionSite, ...]) -> dict[str, Rotary]:
    """How each layer rotates, found by feeding positions that are one larger."""
    buffers = inv_freq_buffers(subject.model).values()
    if not buffers or not attention or not subject.can.takes_positions:
        return {}
    names = {id(module): name for name, module in subject.model.named_modules()}
    tokens = subject.inputs.tokens
    keep = partial(_first_query, names)
    try:
        runs = [
            dict(
                subject.record_calls(
                    tokens,
                    keep,
                    positions_BT=torch.tensor(counting(1, len(tokens[0]), start)),
                )
            )
            for start in (0, 1)
        ]
    except Unsupported:
        return {}
    return {
        site.module: rotary
        for site in attention
        for buffer in list(buffers)[::-1]
        for rotary in _fitting(buffer, runs[0].get(site.module), runs[1].get(site.module))
    }


def _first_query(names: dict[int, str], call: AttentionCall) -> tuple[str, Tensor]:
    """The queries of the first token: the same states in both runs, whatever other layers did."""
    return names.get(id(call.module), ""), call.query_BHTD[:, :, :1].clone()


def _fitting(inv_freq_P: Tensor, at_0: Tensor | None, at_1: Tensor | None) -> Iterator[Rotary]:
    if at_0 is None or at_1 is None or 2 * inv_freq_P.numel() > at_0.shape[-1]:
        return
    for rotary in (Rotary(inv_freq_P.clone(), "half"), Rotary(inv_freq_P.clone(), "pairs")):
        turned = rotary.turned(at_0, torch.ones(1))
        if not beyond(turned, at_1, ROUNDINGS * float(at_0.abs().max())):
            yield rotary
