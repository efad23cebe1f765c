"""Heads of one layer that are rotated otherwise than its other heads.

Where all heads of a layer cannot be traced to a projection together, each is traced by itself, and
those that share a rotation are grouped. The largest group, or the one that rotates as the layer's
queries do, says how the layer rotates.

Axes: B batch, H heads, T positions, D head width, P pairs of channels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

from attncheck.attention.layers import layer_number
from attncheck.core.measurement import AtMost, Cause, Measurement
from attncheck.core.observed_part import ObservedPart
from attncheck.judge.rotation_angles import Layout, ObservedRotation, observed_rotation

ALIKE = 1e-5
"""Angles, in radians, that are this near are the same offset in every pair of channels."""
Kind = tuple[str | None, int]


@final
@dataclass(frozen=True, kw_only=True)
class OddHeads:
    """Heads of one layer that are rotated otherwise than most; `offset` is how many positions
    further, where it is that. `may_be_meant` says that they are not rotated at all, or that the
    config states no rotation.
    """

    name: str
    what: Literal["queries", "keys"]
    kind: Kind
    heads: tuple[int, ...]
    offset: float | None = None
    may_be_meant: bool = False

    @property
    def cause(self) -> Cause:
        """The layer, its heads, and that they are rotated."""
        number = layer_number(self.name)
        part = ObservedPart(
            what=self.what,
            how="rotated",
            layers=() if number is None else (number,),
            heads=self.heads,
            amount=self.offset,
        )
        return Cause(module=self.name, parts=(part,))

    def __str__(self) -> str:
        some = f"head{'s' if len(self.heads) > 1 else ''} {', '.join(map(str, self.heads))}"
        if self.offset is None:
            return f"{self.name}: {self.what} of {some} are not rotated as those of the others"
        way = "further" if self.offset > 0 else "less far"
        by = f"{abs(self.offset):.6g} positions {way}"
        return f"{self.name}: {self.what} of {some} are rotated {by} than those of the others"


@final
@dataclass(frozen=True)
class HeadGroups:
    """The heads of one layer by their rotation: `usual` is that of the layer."""

    usual: ObservedRotation
    odd: Mapping[tuple[int, ...], ObservedRotation]

    def described(
        self, name: str, what: Literal["queries", "keys"], kind: Kind, stated: bool
    ) -> Iterator[OddHeads]:
        """The groups that are rotated otherwise, with what they are; `stated` says whether the
        config states a rotation.
        """
        for heads, rotation in self.odd.items():
            yield OddHeads(
                name=name,
                what=what,
                kind=kind,
                heads=heads,
                offset=_offset(rotation, self.usual),
                may_be_meant=not (stated and rotation.pairs),
            )


def grouped_heads(
    states_BHTD: Tensor,
    stages: dict[str, Tensor],
    width: int,
    like: ObservedRotation | None,
    hint: Layout | None,
) -> HeadGroups | None:
    """The heads of queries or keys by how they are rotated, each up to a factor of its own; None
    where one comes from no stage, or no group is larger than the others and none is rotated as
    `like`.
    """
    alone: list[ObservedRotation] = []
    for head in range(states_BHTD.shape[1]):
        found = observed_rotation(states_BHTD[:, head : head + 1], stages, width, hint)
        if found is None:
            return None
        alone.append(found)
    gain_H11 = torch.tensor([each.gain for each in alone], dtype=torch.float64)[:, None, None]
    even_BHTD = states_BHTD.double() / gain_H11.to(states_BHTD.device)
    groups: list[list[int]] = []
    for head in range(len(alone)):
        for group in groups:
            pair_B2TD = even_BHTD[:, [group[0], head]]
            if observed_rotation(pair_B2TD, stages, width, hint) is not None:
                group.append(head)
                break
        else:
            groups.append([head])
    usual = _usual(groups, alone, like)
    if usual is None:
        return None
    odd = {tuple(each): alone[each[0]] for each in groups if each is not usual}
    return HeadGroups(alone[usual[0]], odd)


def _usual(
    groups: list[list[int]], alone: Sequence[ObservedRotation], like: ObservedRotation | None
) -> list[int] | None:
    """The group that rotates as another part of the layer does, otherwise the largest."""
    if like is not None:
        for group in groups:
            if _offset(alone[group[0]], like) == 0.0:
                return group
    first, *others = sorted(groups, key=len, reverse=True)
    return None if others and len(others[0]) == len(first) else first


def _offset(rotation: ObservedRotation, usual: ObservedRotation) -> float | None:
    """How many positions further one rotation is than another, at every position and in every pair;
    None where it is not that.
    """
    if rotation.layout != usual.layout:
        return None
    if not usual.pairs:
        return 0.0
    between_BTP = (rotation.factor_BTP * usual.factor_BTP.conj()).angle()
    speed_P = usual.inv_freq_P
    fastest = int(speed_P.abs().argmax())
    offset = float(between_BTP[..., fastest].mean() / speed_P[fastest])
    left_BTP = torch.polar(torch.ones_like(between_BTP), between_BTP - offset * speed_P).angle()
    noise_P = rotation.noise_P + usual.noise_P + ALIKE
    if not bool((left_BTP.abs() <= noise_P).all()):
        return None
    return 0.0 if abs(offset) <= ALIKE else offset


def head_cases(found: list[OddHeads], layers: Mapping[Kind, set[str]]) -> Iterator[Measurement]:
    """One case over the layers whose heads were traced one by one; `layers` names all layers of
    each kind.
    """
    if not found:
        return
    wrong = [each for each in found if not _designed(each, found, layers)]
    yield AtMost(
        f"rotation of each head of {len({each.name for each in found})} layers",
        float(sum(len(each.heads) for each in wrong)),
        "heads are rotated otherwise than the other heads of their layer",
        positions=sum(len(each.heads) for each in found),
        note=str(wrong[0]) if wrong else "",
        cause=wrong[0].cause if wrong else Cause(),
    )


def _designed(odd: OddHeads, found: list[OddHeads], layers: Mapping[Kind, set[str]]) -> bool:
    """Whether every layer of several of a kind has the same odd heads: that may be meant."""
    alike = {
        each.name
        for each in found
        if (each.what, each.kind, each.heads) == (odd.what, odd.kind, odd.heads)
    }
    return odd.may_be_meant and len(alike) > 1 and alike == layers[odd.kind]
