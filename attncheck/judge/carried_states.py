"""Whether the queries, keys and values that a kernel gets are those that the layer's own
projections returned, and whether what the kernel returns is what the layer goes on with: of the
same token, and times the same factor as in most heads.

Values and outputs are compared as they are, queries and keys by their lengths, which a rotation
keeps. Only what is recognised is judged: a layer may well compute its states in another way.

Axes: B batch, H heads, N blocks of D channels, T positions, D head width.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, final

import torch
from torch import Tensor

from attncheck.attention.layers import layer_number, layer_type
from attncheck.core.measurement import AtMost, Cause, Measurement
from attncheck.core.observed_part import ObservedPart
from attncheck.judge.config_spec import factor_check
from attncheck.judge.layer_calls import LayerCall
from attncheck.judge.projections import COARSE, FEWEST, TINY, blocks_of, resolution
from attncheck.judge.rotation_angles import TABLE_ROUNDING
from attncheck.model.subject import Subject
from attncheck.numerics.divergence import max_abs

SHIFTS = (0, -1, 1, -2, 2, -3, 3)
MOST = 0.5
KERNEL = "the kernel"
What = Literal["queries", "keys", "values", "context"]
Match = tuple[int, float]
MatchOf = Callable[[Tensor, Tensor, float], Match | None]
"""The first of several blocks (B, N, T, D) that a head (B, T, D) is, and the factor on it."""


@final
@dataclass(frozen=True)
class CarriedHead:
    """A head is the `block` of a projection: that of the token `shift` on, times `factor`, which is
    0 for a head of zeros whose block has none.
    """

    shift: int
    factor: float
    block: int

    @property
    def is_blank(self) -> bool:
        """Whether nothing of the block is left."""
        return self.factor == 0.0


@final
@dataclass(frozen=True, kw_only=True)
class CarriedStates:
    """The queries, keys or values of one layer, or what its kernel returned and goes on, head by
    head, as those of a stage of it. `kind` is the type of the layer and the width of its heads.
    """

    name: str
    what: What
    kind: tuple[str | None, int]
    stage: str
    heads: tuple[CarriedHead, ...]
    is_known_factor: Callable[[float, bool], bool]

    def wrong(self, usual: float | None) -> list[int]:
        """The heads that are those of other tokens, or times another factor than usual.

        One factor on all queries or keys of a layer is part of the scale, and judged with it.
        """
        first = self.heads[0]
        alike = not any(head.is_blank for head in self.heads) and all(
            head.shift == first.shift and abs(head.factor / first.factor - 1) <= TABLE_ROUNDING
            for head in self.heads
        )
        if alike and self.what in ("queries", "keys"):
            return []
        return [
            number
            for number, head in enumerate(self.heads)
            if head.shift or head.is_blank or self._is_scaled(head.factor, usual)
        ]

    def _is_scaled(self, factor: float, usual: float | None) -> bool:
        if usual is None or abs(factor / usual - 1) <= TABLE_ROUNDING:
            return False
        return not self.is_known_factor(factor / usual, False)

    def cause(self, wrong: Sequence[int]) -> Cause:
        """The layer, and what is done to its states."""
        number, first = layer_number(self.name), self.heads[wrong[0]]
        part = ObservedPart(
            what=self.what,
            how="other token" if first.shift else "zero" if first.is_blank else "scaled",
            layers=() if number is None else (number,),
            heads=() if len(wrong) == len(self.heads) else tuple(wrong),
            amount=float(first.shift) if first.shift else first.factor,
        )
        return Cause(module=self.name, parts=(part,))

    def text(self, wrong: Sequence[int]) -> str:
        """What is done to them, in words."""
        first = self.heads[wrong[0]]
        some = f" of head{'s' if len(wrong) > 1 else ''} {', '.join(map(str, wrong))}"
        heads = "" if len(wrong) == len(self.heads) else some
        out = self.what == "context"
        whose = f"{self.name}: {'outputs' if out else self.what}{heads}"
        if first.shift:
            way = "before" if first.shift < 0 else "after"
            token = f"those of the token {abs(first.shift)} {way}"
            return f"{whose} go on as {token}" if out else f"{whose} are {token}"
        if first.is_blank:
            zeros = "are zero, which their projection is not"
            return f"{whose} go on as zeros" if out else f"{whose} {zeros}"
        times = f"times {first.factor:.6g}, unlike most"
        return f"{whose} go on {times}" if out else f"{whose} are those of `{self.stage}` {times}"


def carried_states(layer: LayerCall, subject: Subject) -> Iterator[CarriedStates]:
    """The queries, keys and values of one layer, those of which every head is recognised."""
    call = layer.call
    whats: tuple[What, ...] = ("queries", "keys", "values")
    states = (call.query_BHTD, call.key_BGSD, call.value_BGSD)
    for what, states_BHTD in zip(whats, states, strict=True):
        yield from _carried(what, states_BHTD, layer.stages, layer, subject)


def carried_context(
    layer: LayerCall, entering_BTW: Tensor, subject: Subject
) -> Iterator[CarriedStates]:
    """What enters a sub-module behind the kernel, if every head of it is one of the kernel's."""
    context_BTHD = layer.context_BTHD
    if context_BTHD.ndim == 4 and entering_BTW.shape == context_BTHD.flatten(2).shape:
        states_BHTD = entering_BTW.reshape(context_BTHD.shape).transpose(1, 2)
        yield from _carried("context", states_BHTD, {KERNEL: context_BTHD}, layer, subject)


def _carried(
    what: What,
    states_BHTD: Tensor,
    stages: dict[str, Tensor],
    layer: LayerCall,
    subject: Subject,
) -> Iterator[CarriedStates]:
    """The states by the latest stage that every head of them is of."""
    slack = resolution(states_BHTD.dtype)
    batch, _, length, width = states_BHTD.shape
    if slack > COARSE or length <= FEWEST + max(SHIFTS):
        return
    config = getattr(layer.call.module, "config", None) or subject.text_config
    match = _lengths if what in ("queries", "keys") else _factor
    readings = {name: blocks_of(stage, batch, length, width) for name, stage in stages.items()}
    blank = _blank(states_BHTD, itertools.chain(*readings.values()))
    for name, found in reversed(readings.items()):
        for blocks_BNTD in found:
            heads = _heads(states_BHTD.double(), blocks_BNTD.double(), slack, match, blank)
            if heads is not None:
                yield CarriedStates(
                    name=layer.name,
                    what=what,
                    kind=(layer_type(config, layer.index), width),
                    stage=name,
                    heads=heads,
                    is_known_factor=factor_check(config, subject.model, layer.call.module),
                )
                return


def _heads(
    states_BHTD: Tensor, blocks_BNTD: Tensor, slack: float, match_of: MatchOf, blank: list[int]
) -> tuple[CarriedHead, ...] | None:
    """Each head as a block at the nearest token, or `blank`; None where one is neither."""
    if blank and states_BHTD.shape != blocks_BNTD.shape:
        return None
    found = {head: CarriedHead(0, 0.0, head) for head in blank}
    for shift in SHIFTS:
        ours_BHTD, theirs_BNTD = _beside(states_BHTD, blocks_BNTD, shift)
        for head in set(range(states_BHTD.shape[1])) - set(found):
            match = match_of(ours_BHTD[:, head], theirs_BNTD, slack)
            # a projection of another token times a factor may be chance
            if match is not None and (not shift or abs(match[1] - 1) <= slack):
                found[head] = CarriedHead(shift, match[1], match[0])
    if len(found) < states_BHTD.shape[1]:
        return None
    return tuple(found[head] for head in range(len(found)))


def _blank(states_BHTD: Tensor, readings: Iterable[Tensor]) -> list[int]:
    """The heads of zeros, unless a stage that has a block for each head has a blank one there."""
    blank_H = (states_BHTD == 0).all(-1).all(-1).all(0)
    for blocks_BNTD in readings if bool(blank_H.any()) else ():
        if blocks_BNTD.shape == states_BHTD.shape:
            blank_H = blank_H & ~(blocks_BNTD == 0).all(-1).any(-1).any(0)
    found: list[int] = blank_H.nonzero().flatten().tolist()
    return found


def _beside(states_BHTD: Tensor, blocks_BNTD: Tensor, shift: int) -> tuple[Tensor, Tensor]:
    """The positions of both where a state may be the block `shift` tokens on."""
    length = states_BHTD.shape[2]
    first, last = max(0, -shift), length - max(0, shift)
    return states_BHTD[:, :, first:last], blocks_BNTD[:, :, first + shift : last + shift]


def _factor(head_BTD: Tensor, blocks_BNTD: Tensor, slack: float) -> Match | None:
    """The first block that a head is, and the factor on it; None where it is none, or zero."""
    dots_N = (head_BTD[:, None] * blocks_BNTD).sum((0, 2, 3))
    factor_N = dots_N / blocks_BNTD.square().sum((0, 2, 3)).clamp_min(TINY)
    left_BNTD = head_BTD[:, None] - factor_N[:, None, None] * blocks_BNTD
    fits_N = (left_BNTD.abs().amax((0, 2, 3)) <= slack * max_abs(head_BTD)) & (factor_N != 0)
    return _first(fits_N, factor_N)


def _lengths(head_BTD: Tensor, blocks_BNTD: Tensor, slack: float) -> Match | None:
    """The first block that has the lengths of a head at every token, up to one factor; None where
    none has, or the head is zero.
    """
    lengths_NX = blocks_BNTD.norm(dim=-1).transpose(0, 1).flatten(1)
    ratio_NX = head_BTD.norm(dim=-1).flatten() / lengths_NX.clamp_min(TINY)
    mean_N = ratio_NX.mean(-1)
    fits_N = (ratio_NX.amax(-1) - ratio_NX.amin(-1) <= slack * mean_N) & (mean_N > 0)
    fits_N &= torch.isfinite(mean_N) & (lengths_NX > 0).all(-1)
    return _first(fits_N, mean_N)


def _first(fits_N: Tensor, factor_N: Tensor) -> Match | None:
    block = int(fits_N.long().argmax())
    return (block, float(factor_N[block])) if bool(fits_N.any()) else None


def carried_cases(found: list[CarriedStates]) -> Iterator[Measurement]:
    """One case each over all layers whose queries, keys or values are recognised."""
    for what in dict.fromkeys(each.what for each in found):
        yield _case(what, [each for each in found if each.what == what])


def _case(what: What, found: list[CarriedStates]) -> Measurement:
    usual = {each.kind: _usual(each.kind, found) for each in found}
    wrong = [(each, heads) for each in found if (heads := each.wrong(usual[each.kind]))]
    name, source = ("outputs", "kernel") if what == "context" else (what, "projection")
    return AtMost(
        f"{name} of {len(found)} layers against their {source}",
        float(sum(len(heads) for _, heads in wrong)),
        f"heads have {name} of other tokens, zeros, or another factor than most",
        positions=sum(len(each.heads) for each in found),
        note=wrong[0][0].text(wrong[0][1]) if wrong else "",
        cause=wrong[0][0].cause(wrong[0][1]) if wrong else Cause(),
    )


def _usual(kind: tuple[str | None, int], found: list[CarriedStates]) -> float | None:
    """The factor of most heads of several layers of a kind; None where there is none."""
    alike = [each for each in found if each.kind == kind]
    factors = [head.factor for each in alike for head in each.heads if not head.is_blank]
    if not factors:
        return None
    (rounded, count), *_ = Counter(f"{factor:.4g}" for factor in factors).most_common(1)
    if len(alike) == 1 or count <= MOST * len(factors):
        return None
    return median(factor for factor in factors if f"{factor:.4g}" == rounded)
