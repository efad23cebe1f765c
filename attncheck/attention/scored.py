"""Read an attention call off a tape: which tensors are queries, keys and values, what is added to
the scores, and which scale they have.

Axes: B batch, H query heads, G key/value heads, T query positions, S key positions, D head width.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from attncheck.attention.call import AttentionCall, suspend_recording
from attncheck.attention.masks import bias_in, readable
from attncheck.attention.product import Product
from attncheck.attention.reference import AttentionParams, attend, grouped, slope_between
from attncheck.attention.tape import Tape
from attncheck.core.errors import Unsupported
from attncheck.numerics.divergence import beyond, max_abs

HIDDEN = -5e3
"""Anything added to a score below this hides its key (the oldest models add -10000); biases are
larger.
"""
LARGE = 1e6
"""A factor on the queries that saturates a cap."""
INNER = 0.9
"""Scores within this part of their cap show what they were before."""
STEEP = 16
"""By so much the inverse of a cap magnifies rounding there."""
ROUNDINGS = 64
"""Scores follow a scale, and weights are those of the softmax, within this many units in the last
place.
"""


def scored_call(tape: Tape, last: Product, rows: int) -> AttentionCall | None:
    """The attention call that a tape and its product with the values form, or None: the tape may
    then say why.
    """
    first = tape.product
    if not (first.readable and last.readable):
        return None
    query = first.heads(0, first.left, first.row + first.inner, rows)
    key = first.heads(1, first.right, first.column + first.inner, rows)
    value = last.heads(1, last.right, last.inner + last.column, rows)
    weights = last.heads(0, last.left, last.row + last.inner, rows)
    if tape.trouble or query is None or key is None or value is None or weights is None:
        return None
    shape_BHTS = (rows, query.shape[1], query.shape[2], key.shape[2])
    if (
        tuple(weights.shape) != shape_BHTS
        or value.shape[2] != key.shape[2]
        or tape.scores is None
        or tape.weights is None
    ):
        return None
    columns = tape.scores.shape[-1]
    if tape.scores.shape != tape.weights.shape or columns - key.shape[2] not in (0, 1):
        return None
    if tape.scores.numel() // columns != weights.numel() // key.shape[2]:
        return None
    return _read(tape, last, query, key, value, shape_BHTS)


def _only_keys(tensor: Tensor, shape_BHTS: tuple[int, int, int, int]) -> Tensor:
    """Scores or weights of the keys, without the column of a sink behind them."""
    return tensor[..., : shape_BHTS[3]].reshape(shape_BHTS)


def _sinks(tape: Tape, shape_BHTS: tuple[int, int, int, int]) -> Tensor | None:
    """sinks_H, the scores of a column behind the keys, as the module's own parameter where it is
    one; None where there is no such column.
    """
    assert tape.scores is not None
    if tape.scores.shape[-1] == shape_BHTS[3]:
        return None
    sinks_H = tape.scores[..., -1].reshape(shape_BHTS[:3])[0, :, 0]
    own = tape.owner.parameters(recurse=False)
    same = [each for each in own if each.shape == sinks_H.shape and torch.equal(each, sinks_H)]
    return same[0] if same else sinks_H


def _read(
    tape: Tape,
    last: Product,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    shape_BHTS: tuple[int, int, int, int],
) -> AttentionCall:
    assert tape.scores is not None
    with torch.no_grad(), suspend_recording():
        # zero queries leave nothing of the products: what remains was added to the scores
        blank = tape.replay(torch.zeros_like(tape.product.left), tape.product.right, tape.scores)
        blank, sinks_H = _only_keys(blank, shape_BHTS), _sinks(tape, shape_BHTS)
        probe = query if bool(query.any()) else _some(query)
        left = tape.product.laid_out(0, probe, tape.product.row + tape.product.inner)
        scores = (
            tape.scores if probe is query else tape.replay(left, tape.product.right, tape.scores)
        )
        shifted = _only_keys(scores, shape_BHTS) - blank
        raw = probe @ key[:, list(grouped(probe.shape[1], key.shape[1]))].mT
        # scores of hidden keys carry no information on the scale
        seen = (blank > HIDDEN) & shifted.isfinite()
        mask = torch.where(blank > HIDDEN, blank, torch.finfo(torch.float32).min).to(query.dtype)
        added = max_abs(torch.where(seen, blank, 0.0))
        scale, caveat = _scale(raw, shifted, seen, added)
        capped = _capped(tape, left, raw, shifted, seen, blank) if caveat else None
        if capped is not None:
            scale, caveat = capped[0], ""
        if changed := _after_softmax(tape, last):
            caveat = caveat or changed
            # what was set to zero after the softmax is hidden as well
            weights = tape.replay(
                torch.zeros_like(tape.product.left), tape.product.right, last.left
            ).reshape(shape_BHTS)
            mask = torch.where(weights > 0, mask, torch.finfo(torch.float32).min).to(query.dtype)
    options: dict[str, Any] = {"scaling": scale, "is_causal": False}
    if sinks_H is not None:
        options["s_aux"] = sinks_H
    cap = None if capped is None else capped[1]
    if cap is not None:
        options["softcap"] = cap
    kernel = _Replay(tape, last, mask, scale, cap, caveat, sinks_H)
    return AttentionCall(
        tape.owner, query, key, value, mask, options, kernel, inline=True, caveat=caveat
    )


def _some(query: Tensor) -> Tensor:
    """Other queries, for a call whose own are all zero: no scale can be fitted to those."""
    return (
        torch.arange(query.numel(), device=query.device).sin().reshape(query.shape).to(query.dtype)
    )


def _scale(
    raw_BHTS: Tensor, shifted_BHTS: Tensor, seen_BHTS: Tensor, added: float
) -> tuple[float, str]:
    """The factor from products to scores, and a caveat where no single factor fits. `added` is the
    largest bias.
    """
    raw, shifted = (torch.where(seen_BHTS, each, 0.0).double() for each in (raw_BHTS, shifted_BHTS))
    scale = slope_between(raw, shifted)
    size = max(max_abs(shifted), max_abs(raw) * abs(scale), added)
    slack = ROUNDINGS * torch.finfo(raw_BHTS.dtype).eps * size
    if not scale > 0 or beyond(shifted, scale * raw, slack):
        return scale, "its scores are more than a multiple of the products of queries and keys"
    return scale, ""


def _capped(
    tape: Tape, left: Tensor, raw: Tensor, shifted: Tensor, seen: Tensor, blank: Tensor
) -> tuple[float, float] | None:
    """(scale, cap) of scores that are capped by a tanh; None where they are not. Large queries show
    the cap, and the scores without it must be a multiple of the products.
    """
    assert tape.scores is not None
    saturated = tape.replay(left * LARGE, tape.product.right, tape.scores)
    saturated = saturated[..., : blank.shape[-1]].reshape(blank.shape)
    raw, shifted, saturated = (
        torch.where(seen, each, 0.0).double() for each in (raw, shifted, saturated - blank)
    )
    cap = max_abs(saturated)
    if not 0 < cap < math.inf:
        return None
    inner = shifted.abs() < INNER * cap
    scale = slope_between(raw * inner, cap * (shifted * inner / cap).atanh())
    slack = ROUNDINGS * torch.finfo(blank.dtype).eps * max(cap, max_abs(blank[seen])) * STEEP
    if not scale > 0 or beyond(shifted, cap * (scale * raw / cap).tanh(), slack):
        return None
    return scale, cap


def _after_softmax(tape: Tape, last: Product) -> str:
    """A caveat where weights are changed between the softmax and the values."""
    assert tape.weights is not None
    left = tape.weights[..., : last.left.shape[last.axes[0].index(last.inner)]]
    used = last.left.reshape(left.shape)
    rows = left.isfinite().all(-1, keepdim=True)
    slack = ROUNDINGS * torch.finfo(used.dtype).eps
    difference = max_abs(torch.where(rows, used - left, 0.0))
    return "its weights are changed after the softmax" if difference > slack else ""


class _Replay:
    """Runs the model's own operations again with other queries, keys and values. With another mask
    or scale, computes attention with those instead.
    """

    def __init__(
        self,
        tape: Tape,
        last: Product,
        mask: Tensor,
        scale: float,
        cap: float | None,
        caveat: str,
        sinks_H: Tensor | None = None,
    ) -> None:
        self.sinks_H = sinks_H
        self.tape, self.last, self.mask = tape, last, mask
        self.scale, self.cap, self.caveat = scale, cap, caveat
        self.__name__ = "inline_attention"

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        with suspend_recording(False):
            # by identity: a handler that leaves both alone must get the bits of the model
            if mask is not self.mask or options["scaling"] != self.scale:
                return self._changed(query, key, value, mask, options["scaling"]), None
            first, last = self.tape.product, self.last
            left = first.laid_out(0, query, first.row + first.inner)
            right = first.laid_out(1, key, first.column + first.inner)
            weights = self.tape.replay(left, right, last.left)
            out = last.run(weights, last.laid_out(1, value, last.inner + last.column))
            context_BHTD = last.heads(2, out, last.row + last.column, query.shape[0])
        assert context_BHTD is not None
        return context_BHTD.transpose(1, 2), None

    def _changed(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float
    ) -> Tensor:
        """Standard attention, which the model's operations are unless there is a caveat."""
        if self.caveat and scale != self.scale:
            raise Unsupported(self.caveat)
        allowed = query.new_ones((), dtype=torch.bool) if mask is None else readable(mask)
        heads = grouped(query.shape[1], key.shape[1])
        if self.caveat:
            return self._with_keys(query, key, value, allowed)
        bias = bias_in(mask)
        params = AttentionParams(
            scale=scale,
            allowed=allowed,
            heads=heads,
            cap=self.cap,
            sinks_H=self.sinks_H,
            bias=bias,
            empty_row=None,
        )
        return attend(query, key, value, params)

    def _with_keys(self, query: Tensor, key: Tensor, value: Tensor, allowed_BHTS: Tensor) -> Tensor:
        """The model's own scores where it reads a key, plain scores for keys that are added: enough
        to inject a fault of the mask, not to predict one.
        """
        assert self.tape.scores is not None
        first, heads = self.tape.product, list(grouped(query.shape[1], key.shape[1]))
        left = first.laid_out(0, query, first.row + first.inner)
        right = first.laid_out(1, key, first.column + first.inner)
        plain = self.scale * (query @ key[:, heads].mT)
        scores = self.tape.replay(left, right, self.tape.scores)
        own = scores[..., : plain.shape[-1]].reshape(plain.shape)
        scores = torch.where(readable(self.mask), own, plain)
        hidden = scores.masked_fill(~allowed_BHTS, torch.finfo(torch.float32).min)
        return (hidden.softmax(-1) @ value[:, heads]).transpose(1, 2)
