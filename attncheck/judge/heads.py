"""What became of a projection's heads on the way to the kernel: their order, and which layer's keys
they are.

Attention over mixed-up heads is right attention of other heads: only where they come from tells.

Axes: B batch, H query heads, G key/value heads, T query positions, S key positions, D head width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, final

from torch import Tensor

from attncheck.attention.layers import layer_number, layer_type
from attncheck.core.errors import Unsupported
from attncheck.core.measurement import AtMost, Cause, Measurement, not_measured
from attncheck.core.observed_part import ObservedPart
from attncheck.judge.carried_states import (
    CarriedStates,
    What,
    carried_cases,
    carried_context,
    carried_states,
)
from attncheck.judge.layer_calls import LayerCall, read_layers
from attncheck.judge.projections import COARSE, resolution, source_of
from attncheck.judge.rotated_states import RotationReader
from attncheck.judge.rotation import rotation_cases
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.subject import Subject


def projection_cases(subject: Subject) -> Iterator[Measurement]:
    """Rotation, order of heads, what reaches the kernel and what goes on, and shared keys in one
    forward; skipped with the reason where no attention can be recorded.
    """
    tokens = subject.inputs.tokens
    length = len(tokens[0])
    rotation = RotationReader(subject, length)
    orders: list[HeadOrder] = []
    keys: list[_Keys] = []
    states: list[CarriedStates] = []
    outputs: list[CarriedStates] = []

    def reader(layer: LayerCall) -> None:
        if layer.over(length):
            rotation(layer)
            orders.extend(_orders_of(layer))
            keys.extend(_keys_of(layer, subject.text_config))
            states.extend(carried_states(layer, subject))

    def entering(layer: LayerCall, name: str, entering_BTW: Tensor) -> None:
        if layer.over(length) and layer.name not in {each.name for each in outputs}:
            outputs.extend(carried_context(layer, entering_BTW, subject))

    try:
        read_layers(subject, ForwardSpec(tokens), reader, entering)
    except Unsupported as reason:
        yield not_measured("rotation of every layer", reason)
        return
    yield from rotation_cases(rotation)
    yield from _order_cases([*orders, *map(_order_of_outputs, outputs)])
    yield from carried_cases([*states, *outputs])
    yield from _shared_cases(keys)


@final
@dataclass(frozen=True, kw_only=True)
class HeadOrder:
    """Which block of which stage each head of a layer's queries, keys or values is, or which of the
    kernel's heads each that goes on.
    """

    name: str
    what: What
    stage: str
    blocks: tuple[int, ...]

    @property
    def rises(self) -> bool:
        """Whether the heads are in the order of the blocks; several heads may be one block."""
        return all(first <= second for first, second in pairwise(self.blocks))

    @property
    def cause(self) -> Cause:
        """The layer, and that its heads are others."""
        number = layer_number(self.name)
        layers = () if number is None else (number,)
        part = ObservedPart(what=self.what, how="other head", layers=layers)
        return Cause(module=self.name, parts=(part,))

    def is_like(self, other: HeadOrder) -> bool:
        """Whether another layer has the same heads from the same stage."""
        mine, others = ((x.what, x.stage, len(x.blocks)) for x in (self, other))
        return mine == others

    def __str__(self) -> str:
        blocks = " ".join(map(str, self.blocks))
        if self.what == "context":
            return f"{self.name}: heads of the kernel's output go on in the order {blocks}"
        return f"{self.name}: heads of {self.what} are the blocks {blocks} of `{self.stage}`"


def _orders_of(layer: LayerCall) -> Iterator[HeadOrder]:
    """The order of one layer's heads, where they were traced to a stage."""
    call = layer.call
    if resolution(call.query_BHTD.dtype) > COARSE:
        return
    whats: tuple[What, ...] = ("queries", "keys", "values")
    parts = (call.query_BHTD, call.key_BGSD, call.value_BGSD)
    for what, states in zip(whats, parts, strict=True):
        source = source_of(states, layer.stages, None)
        if source is not None and len(source.blocks) > 1:
            yield HeadOrder(name=layer.name, what=what, stage=source.stage, blocks=source.blocks)


def _order_of_outputs(states: CarriedStates) -> HeadOrder:
    blocks = tuple(each.block for each in states.heads)
    return HeadOrder(name=states.name, what=states.what, stage=states.stage, blocks=blocks)


def _order_cases(found: list[HeadOrder]) -> Iterator[Measurement]:
    """One case over all heads that were traced to a stage."""
    if not found:
        return
    wrong = [each for each in found if not each.rises and not _designed(each, found)]
    yield AtMost(
        f"order of heads of {len({each.name for each in found})} layers",
        float(sum(len(each.blocks) for each in wrong)),
        "heads are not in the order of their projection",
        positions=sum(len(each.blocks) for each in found),
        note=str(wrong[0]) if wrong else "",
        cause=wrong[0].cause if wrong else Cause(),
    )


def _designed(order: HeadOrder, found: list[HeadOrder]) -> bool:
    """Whether every layer like this one has this order, and values the order of the keys: weights
    can be stored so on purpose.
    """
    # a conversion may permute the stored weights of all layers, and then the code undoes it
    alike = all(each.blocks == order.blocks for each in found if each.is_like(order))
    beside = [
        each.blocks
        for each in found
        if each.name == order.name and {each.what, order.what} == {"keys", "values"}
    ]
    return alike and all(_ranks(blocks) == _ranks(order.blocks) for blocks in beside)


def _ranks(blocks: tuple[int, ...]) -> list[int]:
    """The order of blocks among each other, whatever stage they are of."""
    return [sorted(set(blocks)).index(block) for block in blocks]


@final
@dataclass(frozen=True)
class _Keys:
    """The type of a layer, and sums by which its keys are recognised."""

    name: str
    type: str | None
    sums: tuple[float, ...]


def _keys_of(layer: LayerCall, config: Any) -> Iterator[_Keys]:
    """The keys of one layer, unless they are blank, as sums: of the keys, of their squares, of the
    first head and of the first position.
    """
    call = layer.call
    if bool(call.key_BGSD.any()):
        key_BGSD = call.key_BGSD.double()
        parts = (key_BGSD, key_BGSD.square(), key_BGSD[:, 0], key_BGSD[:, :, 0])
        kind = layer_type(getattr(call.module, "config", None) or config, layer.index)
        yield _Keys(layer.name, kind, tuple(float(part.sum()) for part in parts))


def _shared_cases(found: list[_Keys]) -> Iterator[Measurement]:
    """One case over the layers that read the keys of an earlier one, which must be of their type;
    no case where none does.
    """
    shared = [
        (later, source)
        for place, later in enumerate(found)
        if (source := _source(found[:place], later)) is not None
    ]
    if not shared:
        return
    wrong = [(later, source) for later, source in shared if later.type != source.type]
    note = "{0.name}: a layer of type `{0.type}` reads the keys of {1.name}, of type `{1.type}`"
    yield AtMost(
        f"keys that {len(shared)} layers share with an earlier one",
        float(len(wrong)),
        "layers read the keys of a layer of another type",
        positions=len(shared),
        note=note.format(*wrong[0]) if wrong else "",
        cause=Cause(module=wrong[0][0].name if wrong else ""),
    )


def _source(earlier: list[_Keys], later: _Keys) -> _Keys | None:
    """The first layer with the same keys, if an earlier one has the type of this layer, so that its
    keys could have been read instead.
    """
    possible = any(each.type == later.type for each in earlier)
    same = (each for each in earlier if each.sums == later.sums and each.name != later.name)
    return next(same, None) if possible else None
