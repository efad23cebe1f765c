"""Attention whose keys and values come from one narrow latent, with rotated channels of the key
that all heads share.

Axes: B batch, T positions, H heads, D head width, R rotated channels, L channels of the latent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from attncheck.attention.call import AttentionCall
from attncheck.compare.decoder.fit_rotation import fit_rotation
from attncheck.compare.decoder.fits import norm_of, sliced
from attncheck.compare.decoder.observed import Observed, Unreadable, equal
from attncheck.compare.decoder.spec import AttentionSpec, Latent, Projection, RotarySpec


def with_latents(
    observed: Observed, call: AttentionCall, found: AttentionSpec, name: str
) -> AttentionSpec:
    """`found` with its projections and rotation read from an attention of this kind.

    Raises:
        Unreadable: the attention is of another kind.
    """
    query_BHTD, key_BHTD, value_BHTD = (
        each.detach().cpu().double() for each in (call.query_BHTD, call.key_BGSD, call.value_BGSD)
    )
    heads, total, wide = key_BHTD.shape[1], key_BHTD.shape[-1], value_BHTD.shape[-1]
    start = _start(key_BHTD)
    linears = observed.linears(name)
    for each in linears:
        out_BHTD = _by_head(observed, each, heads)
        if out_BHTD is None:
            continue
        if out_BHTD.shape[-1] == total and equal(out_BHTD[..., :start], query_BHTD[..., :start]):
            latent = _latent(observed, linears, each, name)
            found = replace(found, query=linears[each], query_latent=latent)
        both = out_BHTD.shape[-1] == start + wide
        if both and equal(out_BHTD, torch.cat([key_BHTD[..., :start], value_BHTD], -1)):
            key, value = _parted(linears[each], heads, start)
            latent = _latent(observed, linears, each, name)
            found = replace(found, key=key, value=value, key_latent=latent)
    if not found.query.module or not found.value.module:
        raise Unreadable(f"{name} has values of another width than its keys")
    shared, rotary = _shared(observed, linears, key_BHTD[:, :1, :, start:], name)
    return replace(found, shared_key=shared, rotary=replace(rotary, start=start), value_width=wide)


def _start(key_BHTD: Tensor) -> int:
    """The channel from which on all heads have the same key."""
    apart_D = (key_BHTD - key_BHTD[:, :1]).abs().amax((0, 1, 2)) > 0
    return int(apart_D.nonzero()[-1]) + 1 if bool(apart_D.any()) else 0


def _flat(observed: Observed, value: Tensor) -> Tensor:
    return value.reshape(*observed.ids_BT.shape, -1)


def _by_head(observed: Observed, name: str, heads: int) -> Tensor | None:
    out_BTC = _flat(observed, observed.outputs[name])
    if out_BTC.shape[-1] % heads:
        return None
    return out_BTC.view(*out_BTC.shape[:2], heads, -1).transpose(1, 2)


def _parted(projection: Projection, heads: int, start: int) -> tuple[Projection, Projection]:
    """The rows of keys and those of values in a map that gives both for each head."""
    rows_HD = torch.arange(len(projection.weight)).view(heads, -1)
    keys, values = rows_HD[:, :start].flatten(), rows_HD[:, start:].flatten()
    return sliced(projection, keys), sliced(projection, values)


def _latent(
    observed: Observed, linears: dict[str, Projection], reader: str, name: str
) -> Latent | None:
    """The latent that a map reads; None where it reads what the attention gets.

    Raises:
        Unreadable: it reads something else.
    """
    given_BTL = _flat(observed, observed.inputs[reader])
    if equal(given_BTL, observed.inputs[name]):
        return None
    for each in (None, *(n for n in observed.within(name) if n not in linears)):
        norm, before_BTL = None, given_BTL
        if each is not None:
            norm = norm_of(observed, each)
            if norm is None or not equal(_flat(observed, observed.outputs[each]), given_BTL):
                continue
            before_BTL = _flat(observed, observed.inputs[each])
        for down, _ in _slices(observed, linears, before_BTL, name):
            return Latent(down=down, norm=norm)
    raise Unreadable(f"{reader} reads neither the layer nor a latent")


def _slices(
    observed: Observed, linears: dict[str, Projection], value_BTL: Tensor, name: str
) -> Iterator[tuple[Projection, Tensor]]:
    """Rows of maps of the attention's input whose output is a value."""
    for down, out_BTL in _rows(observed, linears, value_BTL.shape[-1], name):
        if equal(out_BTL, value_BTL):
            yield down, out_BTL


def _rows(
    observed: Observed, linears: dict[str, Projection], width: int, name: str
) -> Iterator[tuple[Projection, Tensor]]:
    """The first and the last rows of each map of the attention's input, with their output."""
    for each, projection in linears.items():
        out_BTC = _flat(observed, observed.outputs[each])
        if not equal(observed.inputs[each], observed.inputs[name]) or out_BTC.shape[-1] < width:
            continue
        for rows in {(0, width), (out_BTC.shape[-1] - width, out_BTC.shape[-1])}:
            yield sliced(projection, slice(*rows)), out_BTC[..., slice(*rows)]


def _shared(
    observed: Observed, linears: dict[str, Projection], key_B1TR: Tensor, name: str
) -> tuple[Projection, RotarySpec]:
    """The map to the key that all heads share, and its rotation, of neighbours also where they are
    put into halves on the way.

    Raises:
        Unreadable: no map and rotation give it.
    """
    for projection, out_BTR in _rows(observed, linears, key_B1TR.shape[-1], name):
        before_B1TR = out_BTR[:, None]
        found = fit_rotation(before_B1TR, key_B1TR)
        if found is not None:
            return projection, found
        halves_B1TR = torch.cat([before_B1TR[..., ::2], before_B1TR[..., 1::2]], -1)
        found = fit_rotation(halves_B1TR, key_B1TR)
        if found is not None and found.pairing == "half":
            return projection, replace(found, pairing="pairs")
    raise Unreadable(f"{name}: the key that its heads share is no rotated projection")
