"""Whether a layer that reads the keys of another layer reads those of a layer of its own type.

Axes: B batch, G key/value heads, S key positions, D head width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, final

from torch import Tensor

from attncheck.attention.layers import layer_type
from attncheck.core.finding import AtMost, Cause, Measurement
from attncheck.judge.layers import Attended

Print = tuple[float, ...]
"""What is kept of a layer's keys to know them again."""


@final
@dataclass(frozen=True)
class _Keyed:
    name: str
    word: str | None
    print: Print


@final
@dataclass
class SharedReader:
    """Notes the type and the keys of every layer of one forward of `length` tokens."""

    config: Any
    length: int
    found: list[_Keyed] = field(default_factory=list)

    def __call__(self, layer: Attended) -> None:
        """Note the keys of one layer."""
        if layer.over(self.length) and bool(layer.call.key_BGSD.any()):
            word = layer_type(
                getattr(layer.call.module, "config", None) or self.config, layer.index
            )
            self.found.append(_Keyed(layer.name, word, _print(layer.call.key_BGSD)))


def _print(key_BGSD: Tensor) -> Print:
    """Sums that no other keys have: plain, of squares, and of the heads and positions by
    themselves.
    """
    wide = key_BGSD.double()
    return (
        float(wide.sum()),
        float(wide.square().sum()),
        float(wide[:, 0].sum()),
        float(wide[:, :, 0].sum()),
    )


def shared_cases(reader: SharedReader) -> Iterator[Measurement]:
    """One case over the layers that have the keys of an earlier one; nothing where each has its
    own.
    """
    shared = [
        (later, source)
        for place, later in enumerate(reader.found)
        for source in _sources(reader.found[:place], later)
    ]
    if not shared:
        return
    wrong = [(later, source) for later, source in shared if later.word != source.word]
    note = "{0.name}: a layer of type `{0.word}` reads the keys of {1.name}, which is of type `{1.word}`"
    yield AtMost(
        f"keys that {len(shared)} layers share with an earlier one",
        float(len(wrong)),
        "layers read the keys of a layer of another type",
        positions=len(shared),
        note=note.format(*wrong[0]) if wrong else "",
        cause=Cause(module=wrong[0][0].name if wrong else ""),
    )


def _sources(earlier: list[_Keyed], later: _Keyed) -> list[_Keyed]:
    """The first layer that has the same keys, where there was one of this type whose keys could
    have been read.
    """
    same = [each for each in earlier if each.print == later.print and each.name != later.name]
    return same[:1] if any(each.word == later.word for each in earlier) else []
