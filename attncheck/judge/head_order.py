"""Whether the heads that reach a kernel stand in the order in which the projections put them out.

Attention over mixed-up heads is right attention of other heads: only where they come from tells.

Axes: B batch, H query heads, G key/value heads, T query positions, S key positions, D head width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import final

import torch
from torch import Tensor

from attncheck.core.finding import AtMost, Cause, Measurement
from attncheck.judge.layers import Attended
from attncheck.judge.projections import ROUNDINGS, source_of

COARSE = 1e-3
"""Where rounding alone moves lengths by this part, one head cannot be told from another by its
lengths.
"""
PARTS = ("queries", "keys", "values")


@final
@dataclass(frozen=True, kw_only=True)
class Ordered:
    """Which block of which stage each head of a layer's queries, keys or values is."""

    name: str
    what: str
    stage: str
    blocks: tuple[int, ...]

    @property
    def rises(self) -> bool:
        """Whether the heads stand in the order of the blocks; several heads may be one block."""
        return all(first <= second for first, second in pairwise(self.blocks))

    @property
    def form(self) -> tuple[str, str, int]:
        """Layers with the same are alike."""
        return self.what, self.stage, len(self.blocks)

    def __str__(self) -> str:
        return f"{self.name}: heads of {self.what} are the blocks {' '.join(map(str, self.blocks))} of `{self.stage}`"


@final
@dataclass
class OrderReader:
    """Reads the order of heads off every layer of one forward of `length` tokens."""

    length: int
    found: list[Ordered] = field(default_factory=list)

    def __call__(self, layer: Attended) -> None:
        """Note the order of one layer's heads."""
        call = layer.call
        if (
            not layer.over(self.length)
            or ROUNDINGS * torch.finfo(call.query_BHTD.dtype).eps > COARSE
        ):
            return
        for what, handed in zip(
            PARTS, (call.query_BHTD, call.key_BGSD, call.value_BGSD), strict=True
        ):
            self._read(layer, what, handed)

    def _read(self, layer: Attended, what: str, handed_BHTD: Tensor) -> None:
        source = source_of(handed_BHTD, layer.stages, None)
        if source is not None and len(source.blocks) > 1:
            self.found.append(
                Ordered(name=layer.name, what=what, stage=source.stage, blocks=source.blocks)
            )


def order_cases(reader: OrderReader) -> Iterator[Measurement]:
    """One case over all heads that were traced: in order, or mixed up in every layer alike and keys
    as values.
    """
    if not reader.found:
        return
    wrong = [each for each in reader.found if not each.rises and not _designed(each, reader.found)]
    yield AtMost(
        f"order of heads of {len({each.name for each in reader.found})} layers",
        float(sum(len(each.blocks) for each in wrong)),
        "heads are not in the order of their projection",
        positions=sum(len(each.blocks) for each in reader.found),
        note=str(wrong[0]) if wrong else "",
        cause=Cause(module=wrong[0].name if wrong else ""),
    )


def _designed(odd: Ordered, found: list[Ordered]) -> bool:
    """Whether every layer of the form has this order, and values that of the keys: weights can be
    stored so on purpose.
    """
    alike = all(each.blocks == odd.blocks for each in found if each.form == odd.form)
    beside = [
        each.blocks
        for each in found
        if each.name == odd.name and {each.what, odd.what} == {"keys", "values"}
    ]
    return alike and all(_ranks(blocks) == _ranks(odd.blocks) for blocks in beside)


def _ranks(blocks: tuple[int, ...]) -> list[int]:
    """The places of blocks among each other, whatever stage they are of."""
    return [sorted(set(blocks)).index(block) for block in blocks]
