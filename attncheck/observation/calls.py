"""One failing call explained: what was done to its queries, keys, values, readable tokens and
parameters, and the output that exactly this gives.

Axes: B batch, H query heads, G key/value heads, T queries or tokens, S slots, K tokens, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import final

import torch
from torch import Tensor

from attncheck.attention.reference import AttentionParams, grouped
from attncheck.core.observed_part import What
from attncheck.numerics.divergence import max_abs
from attncheck.observation.cells import readable_tokens, reading_empty
from attncheck.observation.deviation import Deviation
from attncheck.observation.kernel import Used, agrees, context_of, used_by
from attncheck.observation.ledger import LedgerCall
from attncheck.observation.scores import same_scale, score_changes
from attncheck.observation.slots import tokens_in_order, tokens_of_slots
from attncheck.observation.vectors import Matcher, Matches, Rotates


@final
@dataclass(frozen=True, kw_only=True)
class RightLayer:
    """What the trusted path computes in one layer, over the whole forward.

    `params.allowed` are the tokens that each query should read, (B, H, T, K). `relative` is the
    difference that rounding explains, as a share of the largest value. `others` gives keys (0),
    values (1) or queries (2) of other layers.
    """

    layer: int
    query_BHTD: Tensor
    key_BGTD: Tensor
    value_BGTD: Tensor
    context_BTHD: Tensor
    params: AttentionParams
    real_BT: Tensor | None
    relative: float
    rotation: Callable[[], Rotates | None] = lambda: None
    others: Callable[[int], Mapping[int, Tensor]] = lambda which: {}

    def limit(self, states: Tensor) -> float:
        """The difference that rounding explains."""
        finite = states[states.isfinite()]
        return self.relative * max(max_abs(finite) if finite.numel() else 0.0, 1e-30)


@final
@dataclass
class ExplainedCall:
    """The output that the deviations of one call give. `opaque` says that some part of it was
    taken over without being explained.
    """

    context_BTHD: Tensor
    deviations: list[Deviation] = field(default_factory=list)
    opaque: bool = False


def explained_call(right: RightLayer, entry: LedgerCall) -> ExplainedCall:
    """The deviations of one call, and the output that they give on the trusted path."""
    here = slice(entry.start, entry.stop)
    want_BTHD = right.context_BTHD[:, here]
    real_BT = None if right.real_BT is None else right.real_BT[:, here]
    limit = right.limit(right.context_BTHD)
    if want_BTHD.shape == entry.context_BTHD.shape and agrees(
        want_BTHD, entry.context_BTHD, real_BT, limit
    ):
        return ExplainedCall(want_BTHD)
    used = used_by(entry, real_BT, limit)
    if used is None or not _comparable(used, right):
        return _context(right, entry, want_BTHD, limit)
    explained = _CallParts(right, entry, used, real_BT).explained()
    if agrees(explained.context_BTHD, entry.context_BTHD, real_BT, 10 * limit):
        return explained
    changed = _context(right, entry, explained.context_BTHD, limit)
    changed.deviations[:0] = explained.deviations
    return changed


def _comparable(used: Used, right: RightLayer) -> bool:
    """Whether both compute in the same space: absorbed projections have other widths."""
    widths = zip(
        (used.query_BHTD, used.key_BGSD, used.value_BGSD),
        (right.query_BHTD, right.key_BGTD, right.value_BGTD),
        strict=True,
    )
    return all(one.shape[-1] == other.shape[-1] for one, other in widths)


def _context(
    right: RightLayer, entry: LedgerCall, want_BTHD: Tensor, limit: float
) -> ExplainedCall:
    """The output of a kernel that is not understood, as an edit of what it should be."""
    observed_BHTD, want_BHTD = entry.context_BTHD.transpose(1, 2), want_BTHD.transpose(1, 2)
    if observed_BHTD.shape != want_BHTD.shape:
        part = Deviation(what="context", how="another function", layer=right.layer, opaque=True)
        return ExplainedCall(entry.context_BTHD, [part], True)
    expected_BHT = torch.arange(want_BHTD.shape[2]).expand(observed_BHTD.shape[:3])
    real_BT = None if right.real_BT is None else right.real_BT[:, entry.start : entry.stop]
    needed_BHT = torch.ones_like(expected_BHT, dtype=torch.bool)
    if real_BT is not None:
        needed_BHT = needed_BHT & real_BT[:, None]
    own = tuple(range(want_BHTD.shape[1]))
    matches = Matcher(observed_BHTD, want_BHTD, expected_BHT, own, needed_BHT, limit).run()
    found = list(_vectors(right, entry, "context", matches, expected_BHT + entry.start))
    return ExplainedCall(matches.predicted_BGSD.transpose(1, 2), found, matches.opaque > 0)


def _vectors(
    right: RightLayer,
    entry: LedgerCall,
    what: What,
    matches: Matches,
    token_BGS: Tensor,
    head_G: tuple[int, ...] = (),
) -> Iterator[Deviation]:
    """The changed vectors; `head_G` names the head that each one should be, if not its own."""
    own = tuple(range(token_BGS.shape[1]))
    for (b, g, s), change in matches.changes.items():
        yield Deviation(
            what=what,
            how=change.how,
            layer=right.layer,
            row=b,
            head=(head_G or own)[g],
            heads=1 + max(head_G or own),
            at=int(token_BGS[b, g, s]),
            start=entry.start,
            when=entry.when,
            amount=change.amount,
            dtype=change.dtype,
            source=change.source,
            opaque=change.how == "another function",
            channels=change.channels,
            base=change.base,
        )


@final
@dataclass(frozen=True)
class _CallParts:
    """The parts of one call whose arithmetic is understood."""

    right: RightLayer
    entry: LedgerCall
    used: Used
    real_BT: Tensor | None

    def explained(self) -> ExplainedCall:
        """Queries, keys, values, cells and parameters, each explained by itself: with slots named
        by their content, or with slots in order where that says all without a changed cell.
        """
        right, used = self.right, self.used
        stored, kept = used.key_BGSD.shape[1], right.key_BGTD.shape[1]
        # a kernel may repeat key/value heads for each query head before it multiplies
        head_G = grouped(stored, kept) if stored >= kept else tuple(range(stored))
        keys, values = (used.key_BGSD, right.key_BGTD), (used.value_BGSD, right.value_BGTD)
        limits, stop = (right.limit(keys[1]), right.limit(values[1])), self._keys_until()
        token_BGS = tokens_of_slots(keys, values, stop, head_G, limits)
        found = self._by_tokens(token_BGS, head_G, limits)
        in_order_BGS = tokens_in_order(used.key_BGSD, stop)
        cells = any(each.what == "cells" for each in found.deviations)
        if not cells or torch.equal(in_order_BGS, token_BGS):
            return found
        in_order = self._by_tokens(in_order_BGS, head_G, limits)
        moved = in_order.opaque or any(each.what == "cells" for each in in_order.deviations)
        return found if moved else in_order

    def _by_tokens(
        self, token_BGS: Tensor, head_G: tuple[int, ...], limits: tuple[float, float]
    ) -> ExplainedCall:
        right, used = self.right, self.used
        needed_BGS = self._needed(token_BGS)
        queries = self._queries()
        keys = self._stored(0, head_G, token_BGS, needed_BGS, limits[0])
        values = self._stored(1, head_G, token_BGS, needed_BGS, limits[1])
        found = [
            *_vectors(right, self.entry, "queries", queries, self._query_tokens()),
            *_vectors(right, self.entry, "keys", keys, token_BGS, head_G),
            *_vectors(right, self.entry, "values", values, token_BGS, head_G),
            *self._cells(token_BGS),
        ]
        params, changed = self._params(token_BGS)
        context_BTHD = context_of(
            queries.predicted_BGSD, keys.predicted_BGSD, values.predicted_BGSD, params, used.softmax
        )
        opaque = bool(queries.opaque or keys.opaque or values.opaque)
        return ExplainedCall(context_BTHD, [*found, *changed], opaque)

    def _keys_until(self) -> int:
        """How many tokens there are to read: all of an encoder, or those up to this call."""
        keys = self.right.key_BGTD.shape[2]
        return self.entry.stop if keys == self.right.query_BHTD.shape[2] else keys

    def _needed(self, token_BGS: Tensor) -> Tensor:
        """(B, G, S) booleans: slots of real tokens that some real query reads. What padding holds
        is specified nowhere: it is taken as it is.
        """
        allowed = self.used.params.allowed
        if self.real_BT is not None:
            allowed = allowed & self.real_BT[:, None, :, None]
        read_BHS = allowed.any(2)
        needed_BGS = torch.zeros_like(token_BGS, dtype=torch.bool)
        for head, stored in enumerate(self.used.params.heads):
            needed_BGS[:, stored] |= read_BHS[:, head]
        real_BT, tokens = self.right.real_BT, self.right.key_BGTD.shape[2]
        if real_BT is not None and real_BT.shape[1] == tokens:
            real_BGT = real_BT[:, None].expand(*token_BGS.shape[:2], tokens)
            needed_BGS &= real_BGT.gather(2, token_BGS.clamp_min(0))
        return needed_BGS

    def _query_tokens(self) -> Tensor:
        shape = self.used.query_BHTD.shape[:3]
        return torch.arange(self.entry.start, self.entry.stop).expand(shape)

    def _queries(self) -> Matches:
        right, token_BHT = self.right, self._query_tokens()
        needed_BHT = torch.ones_like(token_BHT, dtype=torch.bool)
        if self.real_BT is not None:
            needed_BHT = needed_BHT & self.real_BT[:, None]
        return Matcher(
            self.used.query_BHTD,
            right.query_BHTD,
            token_BHT,
            tuple(range(token_BHT.shape[1])),
            needed_BHT,
            right.limit(right.query_BHTD),
            right.rotation,
            right.others(2),
        ).run()

    def _stored(
        self, which: int, head_G: tuple[int, ...], token_BGS: Tensor, needed: Tensor, limit: float
    ) -> Matches:
        used, right = self.used, self.right
        observed = (used.key_BGSD, used.value_BGSD)[which]
        trusted = (right.key_BGTD, right.value_BGTD)[which]
        return Matcher(
            observed,
            trusted[:, :, : self._keys_until()],
            token_BGS,
            head_G,
            needed,
            limit,
            right.rotation if which == 0 else lambda: None,
            right.others(which),
        ).run()

    def _cells(self, token_BGS: Tensor) -> Iterator[Deviation]:
        entry, right, params = self.entry, self.right, self.used.params
        cells = readable_tokens(params.allowed, token_BGS, params.heads, right.key_BGTD.shape[2])
        expected = right.params.allowed[:, :, entry.start : entry.stop]
        blank_BGS = ~(self.used.key_BGSD.bool().any(-1) | self.used.value_BGSD.bool().any(-1))
        empty_BHS = (blank_BGS & (token_BGS < 0))[:, list(params.heads)]
        found = cells.differing(expected.expand(cells.count_BHTK.shape))
        for how, (b, h, t, k) in (*found, *reading_empty(params.allowed, empty_BHS)):
            if self.real_BT is None or bool(self.real_BT[b, t]):
                yield Deviation(
                    what="cells",
                    how=how,
                    layer=right.layer,
                    row=b,
                    head=h,
                    heads=len(params.heads),
                    at=entry.start + t,
                    key=k,
                    start=entry.start,
                    when=entry.when,
                )

    def _params(self, token_BGS: Tensor) -> tuple[AttentionParams, list[Deviation]]:
        """The parameters with which the call is computed again, and those that differ."""
        used, right, entry = self.used, self.right, self.entry
        params = used.params
        if same_scale(params.scale, right.params.scale, right.relative):
            params = replace(params, scale=right.params.scale)
        found = [
            Deviation(
                what="scores",
                how=how,
                layer=right.layer,
                start=entry.start,
                when=entry.when,
                amount=amount,
                dtype=dtype,
            )
            for how, amount, dtype in score_changes(
                used, right.params, token_BGS, entry.start, right.relative
            )
        ]
        return params, found
