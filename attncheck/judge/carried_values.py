"""Whether the values that a kernel gets are those that the layer's own projection returned: of the
same token, and times the same factor as in most heads.

Only what is recognised is judged: a layer may well compute its values in another way.

Axes: B batch, G value heads, N blocks of D channels, T positions, D head width.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import final

from torch import Tensor

from attncheck.attention.layers import layer_number
from attncheck.core.measurement import AtMost, Cause, Measurement
from attncheck.core.observed_part import ObservedPart
from attncheck.judge.config_spec import factor_check
from attncheck.judge.layer_calls import LayerCall
from attncheck.judge.projections import COARSE, FEWEST, TINY, blocks_of, resolution
from attncheck.model.subject import Subject
from attncheck.numerics.divergence import max_abs

SHIFTS = (0, -1, 1, -2, 2, -3, 3)
MOST = 0.5


@final
@dataclass(frozen=True)
class CarriedHead:
    """A head of values is a block of a projection: that of the token `shift` on, times `factor`."""

    shift: int
    factor: float


@final
@dataclass(frozen=True, kw_only=True)
class CarriedValues:
    """The values of one layer, head by head, as those of a stage of it."""

    name: str
    stage: str
    heads: tuple[CarriedHead, ...]
    is_known_factor: Callable[[float, bool], bool]

    def wrong(self, usual: float | None) -> list[int]:
        """The heads that are those of other tokens, or times another factor than usual."""
        return [
            number
            for number, head in enumerate(self.heads)
            if head.shift or self._is_scaled(head.factor, usual)
        ]

    def _is_scaled(self, factor: float, usual: float | None) -> bool:
        if usual is None or abs(factor / usual - 1) <= COARSE:
            return False
        return not self.is_known_factor(factor / usual, False)

    def cause(self, wrong: Sequence[int]) -> Cause:
        """The layer, and what is done to its values."""
        number, first = layer_number(self.name), self.heads[wrong[0]]
        part = ObservedPart(
            what="values",
            how="other token" if first.shift else "scaled",
            layers=() if number is None else (number,),
            heads=() if len(wrong) == len(self.heads) else tuple(wrong),
            amount=float(first.shift) if first.shift else first.factor,
        )
        return Cause(module=self.name, parts=(part,))

    def text(self, wrong: Sequence[int]) -> str:
        """What is done to the values, in words."""
        first = self.heads[wrong[0]]
        some = f" of head{'s' if len(wrong) > 1 else ''} {', '.join(map(str, wrong))}"
        heads = "" if len(wrong) == len(self.heads) else some
        if not first.shift:
            times = f"times {first.factor:.6g}, unlike most"
            return f"{self.name}: values{heads} are those of `{self.stage}` {times}"
        way = "before" if first.shift < 0 else "after"
        return f"{self.name}: values{heads} are those of the token {abs(first.shift)} {way}"


def carried_values(layer: LayerCall, subject: Subject) -> Iterator[CarriedValues]:
    """The values of one layer, if every head of them is recognised."""
    values_BGTD = layer.call.value_BGSD
    batch, _, length, width = values_BGTD.shape
    slack = resolution(values_BGTD.dtype)
    if slack > COARSE or length <= FEWEST + max(SHIFTS):
        return
    for name, stage in reversed(layer.stages.items()):
        for blocks_BNTD in blocks_of(stage, batch, length, width):
            heads = _heads(values_BGTD.double(), blocks_BNTD.double(), slack)
            if heads is not None:
                config = getattr(layer.call.module, "config", None) or subject.text_config
                known = factor_check(config, subject.model, layer.call.module)
                yield CarriedValues(name=layer.name, stage=name, heads=heads, is_known_factor=known)
                return


def _heads(
    values_BGTD: Tensor, blocks_BNTD: Tensor, slack: float
) -> tuple[CarriedHead, ...] | None:
    """Each head as a block at the nearest token; None where one is none."""
    found: dict[int, CarriedHead] = {}
    limit = slack * max_abs(values_BGTD)
    for shift in SHIFTS:
        ours_BGTD, theirs_BNTD = _beside(values_BGTD, blocks_BNTD, shift)
        for head in set(range(values_BGTD.shape[1])) - set(found):
            factor = _factor(ours_BGTD[:, head], theirs_BNTD, limit)
            # a projection of another token times a factor may be chance
            if factor is not None and (not shift or abs(factor - 1) <= slack):
                found[head] = CarriedHead(shift, factor)
    if len(found) < values_BGTD.shape[1]:
        return None
    return tuple(found[head] for head in range(len(found)))


def _beside(values_BGTD: Tensor, blocks_BNTD: Tensor, shift: int) -> tuple[Tensor, Tensor]:
    """The positions of both where a value may be the block `shift` tokens on."""
    length = values_BGTD.shape[2]
    first, last = max(0, -shift), length - max(0, shift)
    return values_BGTD[:, :, first:last], blocks_BNTD[:, :, first + shift : last + shift]


def _factor(head_BTD: Tensor, blocks_BNTD: Tensor, limit: float) -> float | None:
    """The factor between a head and the first block that it is; None where it is none, or zero."""
    dots_N = (head_BTD[:, None] * blocks_BNTD).sum((0, 2, 3))
    factor_N = dots_N / blocks_BNTD.square().sum((0, 2, 3)).clamp_min(TINY)
    left_BNTD = head_BTD[:, None] - factor_N[:, None, None] * blocks_BNTD
    fits_N = (left_BNTD.abs().amax((0, 2, 3)) <= limit) & (factor_N != 0)
    return float(factor_N[fits_N][0]) if bool(fits_N.any()) else None


def value_cases(found: list[CarriedValues]) -> Iterator[Measurement]:
    """One case over all layers whose values are recognised."""
    if not found:
        return
    usual = _usual(found)
    wrong = [(each, heads) for each in found if (heads := each.wrong(usual))]
    yield AtMost(
        f"values of {len(found)} layers against their projection",
        float(sum(len(heads) for _, heads in wrong)),
        "heads have values of other tokens, or times another factor than most",
        positions=sum(len(each.heads) for each in found),
        note=wrong[0][0].text(wrong[0][1]) if wrong else "",
        cause=wrong[0][0].cause(wrong[0][1]) if wrong else Cause(),
    )


def _usual(found: list[CarriedValues]) -> float | None:
    """The factor of most heads of several layers; None where there is none."""
    factors = Counter(float(f"{head.factor:.4g}") for each in found for head in each.heads)
    factor, count = factors.most_common(1)[0]
    return factor if len(found) > 1 and count > MOST * factors.total() else None
