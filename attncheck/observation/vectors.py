"""Which of the right vectors each observed one is, and what was done to it.

Observed queries, keys or values of one call are matched with those that the trusted path computes
from the same hidden states. Every vector gets one kind: the expected one; that one zeroed, scaled,
rounded or rotated; another token's, head's, sequence's or layer's; or none of these.

Axes: B batch, G heads, S observed vectors, T trusted vectors, D width, N unexplained vectors, M
candidates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, final

import torch
from torch import Tensor
from torch.nn.functional import normalize

from attncheck.core.observed_part import How
from attncheck.observation.edits import SHOWN, VectorEdit, edits


class Rotates(Protocol):
    """What knows by which angles the model rotates one position further."""

    def offset(self, observed_ND: Tensor, right_ND: Tensor, limit: float) -> tuple[Tensor, Tensor]:
        """Whether each vector was only rotated, and by how many positions."""

    def base(self, observed_ND: Tensor, right_ND: Tensor, token_N: Tensor) -> float | None:
        """The one base that rotates all vectors, each at its token, if there is one."""


@final
@dataclass(frozen=True)
class VectorChange:
    """What was done to one vector. `source` is (sequence, head, token) that it comes from,
    `base` the rotary base that its angles follow, `channels` those that differ where others do not.
    """

    how: How
    amount: float | None = None
    dtype: str = ""
    source: tuple[int, int, int] | None = None
    layer: int | None = None
    base: float | None = None
    channels: tuple[int, ...] = ()


@final
@dataclass
class Matches:
    """The changed vectors by (sequence, head, slot), and all vectors as the changes predict them.

    `opaque` counts those that no change explains: they are predicted by themselves.
    """

    predicted_BGSD: Tensor
    changes: dict[tuple[int, int, int], VectorChange] = field(default_factory=dict)
    opaque: int = 0


@final
@dataclass
class Matcher:
    """Matches observed vectors with the trusted ones of the same layer, and of others.

    `expected_BGS` names the token that each should be, -1 for none; `head_G` the trusted head of
    each observed one. `others` are the vectors of other layers.
    """

    observed_BGSD: Tensor
    trusted_BGTD: Tensor
    expected_BGS: Tensor
    head_G: tuple[int, ...]
    needed_BGS: Tensor
    limit: float
    rotation: Callable[[], Rotates | None] = lambda: None
    others: Mapping[int, Tensor] = field(default_factory=dict)

    def run(self) -> Matches:
        """Every needed vector explained where it can be."""
        right_BGSD = self._right()
        observed = self.observed_BGSD
        needed_BGS = self.needed_BGS & (self.expected_BGS >= 0)
        wrong_BGS = needed_BGS & ~self._close(observed, right_BGSD)
        matches = Matches(torch.where((needed_BGS & ~wrong_BGS)[..., None], right_BGSD, observed))
        places = wrong_BGS.nonzero()
        for kind in (self._edited, self._rotated, self._elsewhere, self._elsewhere_edited):
            if len(places):
                places = kind(places, right_BGSD, matches)
        matches.opaque = len(places)
        for place in places.tolist():
            at = tuple(place)
            same_D = (observed[at] - right_BGSD[at]).abs() <= self.limit
            few = 4 * int(same_D.sum()) < same_D.numel()  # by chance
            channels = () if few else (~same_D).nonzero().flatten().tolist()
            change = VectorChange("another function", channels=tuple(channels))
            matches.changes[at] = change
        return matches

    def _right(self) -> Tensor:
        """The expected vectors, (B, G, S, D)."""
        heads_BGTD = self.trusted_BGTD[:, list(self.head_G)]
        index = self.expected_BGS.clamp_min(0)[..., None]
        return heads_BGTD.gather(2, index.expand(*index.shape[:3], heads_BGTD.shape[-1]))

    def _close(self, left: Tensor, right: Tensor) -> Tensor:
        # NaN is close to nothing
        return ((left - right).abs() <= self.limit).all(-1)

    def _edited(self, places: Tensor, right_BGSD: Tensor, matches: Matches) -> Tensor:
        """The expected vectors, zeroed, scaled or rounded."""
        observed, right = self._at(places, self.observed_BGSD), self._at(places, right_BGSD)
        return self._apply_edits(places, observed, right, matches, [None] * len(places))

    def _at(self, places: Tensor, states: Tensor) -> Tensor:
        return states[tuple(places.T)]

    def _apply_edits(
        self,
        places: Tensor,
        observed_ND: Tensor,
        right_ND: Tensor,
        matches: Matches,
        sources: list[tuple[int, int, int] | None],
    ) -> Tensor:
        left = torch.ones(len(places), dtype=torch.bool)
        for edit in edits(observed_ND, right_ND, self.limit):
            tokens = {s for _, _, s in places[edit.fits_N].tolist()}
            # heads may share channels, and rows be alike: only several tokens show a weight or bias
            if edit.how in ("weighted", "moved") and len(tokens) <= SHOWN:
                continue
            for number in (edit.fits_N.cpu() & left).nonzero().flatten().tolist():
                change = _change(edit, number, right_ND[number], sources[number])
                self._found(places[number], change, edit.predicted_ND[number], matches)
                left[number] = False
        return places[left.to(places.device)]

    def _found(
        self, place: Tensor, change: VectorChange, predicted_D: Tensor, matches: Matches
    ) -> None:
        b, g, s = place.tolist()
        matches.changes[b, g, s] = change
        matches.predicted_BGSD[b, g, s] = predicted_D

    def _rotated(self, places: Tensor, right_BGSD: Tensor, matches: Matches) -> Tensor:
        """The expected vectors, rotated by some positions more or less."""
        observed, right = self._at(places, self.observed_BGSD), self._at(places, right_BGSD)
        lengths = (observed.norm(dim=-1) - right.norm(dim=-1)).abs() <= 100 * self.limit
        rotation = self.rotation() if bool(lengths.any()) else None
        if rotation is None:
            return places
        rotated_N, offset_N = rotation.offset(observed, right, self.limit)
        base = None
        if bool(rotated_N.any()):
            tokens_N = self._at(places[rotated_N], self.expected_BGS)
            base = rotation.base(observed[rotated_N], right[rotated_N], tokens_N)
        for number in rotated_N.nonzero().flatten().tolist():
            amount = float(offset_N[number])
            known = None if base is not None or math.isnan(amount) else amount
            change = VectorChange("rotated", known, base=base)
            self._found(places[number], change, observed[number], matches)
        return places[~rotated_N]

    def _pools(self) -> Iterator[tuple[How, int | None, Tensor]]:
        """Where a vector may come from, the nearest first: (B, G, T, D) each."""
        yield "other token", None, self.trusted_BGTD
        for layer, states_BGTD in self.others.items():
            if states_BGTD.shape[-1] == self.observed_BGSD.shape[-1]:
                yield "other layer", layer, states_BGTD

    def _elsewhere(self, places: Tensor, right_BGSD: Tensor, matches: Matches) -> Tensor:
        """Vectors that stand elsewhere on the trusted path, bit by bit."""
        for how, layer, pool_BGTD in self._pools():
            left = []
            distance_NM = _distances(self._at(places, self.observed_BGSD), pool_BGTD)
            for number, place in enumerate(places):
                source = self._nearest(place, distance_NM[number] <= self.limit, pool_BGTD)
                if source is None:
                    left.append(number)
                    continue
                change = self._moved(how, layer, place, source)
                self._found(place, change, pool_BGTD[source], matches)
            places = places[left]
            if not len(places):
                break
        return places

    def _elsewhere_edited(self, places: Tensor, right_BGSD: Tensor, matches: Matches) -> Tensor:
        """Vectors of another token, rounded or scaled as well."""
        pool_BGTD = self.trusted_BGTD
        observed_ND = self._at(places, self.observed_BGSD)
        pool_MD = pool_BGTD.flatten(0, 2)
        unit_ND, unit_MD = (normalize(each, dim=-1) for each in (observed_ND, pool_MD))
        best_N = (unit_ND @ unit_MD.mT).nan_to_num(0.0).abs().argmax(-1)
        heads, length = pool_BGTD.shape[1:3]
        sources: list[tuple[int, int, int] | None] = [
            (m // (heads * length), m // length % heads, m % length) for m in best_N.tolist()
        ]
        right_ND = pool_MD[best_N]
        return self._apply_edits(places, observed_ND, right_ND, matches, sources)

    def _nearest(
        self, place: Tensor, fits_M: Tensor, pool_BGTD: Tensor
    ) -> tuple[int, int, int] | None:
        """Of the places that fit, the one that changes least: sequence, then head, then token."""
        found = fits_M.nonzero().flatten().tolist()
        if not found:
            return None
        b, g, s = place.tolist()
        token, head = int(self.expected_BGS[b, g, s]), self.head_G[g]
        heads, length = pool_BGTD.shape[1:3]
        places = [(m // (heads * length), m // length % heads, m % length) for m in found]
        return min(
            places,
            key=lambda at: (
                (at[0] != b) + (at[1] != head) + (at[2] != token) + 1e-6 * abs(at[2] - token)
            ),
        )

    def _moved(
        self, how: How, layer: int | None, place: Tensor, source: tuple[int, int, int]
    ) -> VectorChange:
        b, g, s = place.tolist()
        token = int(self.expected_BGS[b, g, s])
        if layer is None:
            if source[0] != b:
                how = "other sequence"
            elif source[1] != self.head_G[g] and source[2] == token:
                how = "other head"
        amounts = {"other token": source[2] - token, "other layer": layer}
        amount = amounts.get(how)
        return VectorChange(how, None if amount is None else float(amount), "", source, layer)


def _change(
    edit: VectorEdit, number: int, right_D: Tensor, source: tuple[int, int, int] | None
) -> VectorChange:
    """What one edit did to one of its vectors."""
    amount = None if edit.amount_N is None else float(edit.amount_N[number])
    changed_D = edit.predicted_ND[number] != right_D
    channels = changed_D.nonzero().flatten().tolist() if edit.in_channels else ()
    return VectorChange(edit.how, amount, edit.dtype, source, channels=tuple(channels))


def _distances(observed_ND: Tensor, pool_BGTD: Tensor) -> Tensor:
    """(N, M) largest differences between observed vectors and those of a pool."""
    pool_MD = pool_BGTD.flatten(0, 2)
    return torch.cdist(observed_ND.contiguous(), pool_MD.contiguous(), p=float("inf"))
