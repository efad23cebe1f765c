"""Which KV head each query head of a layer reads, from calls of the layer's own kernel.

Axes: B batch, H query heads, G key/value heads, T query positions, S key positions, D head width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from attncheck.probing import AttentionCall

DISTURB = -1.5
NOTHING = -1

HeadMap = tuple[int, ...]
"""For each query head the KV head that it reads; NOTHING where keys and values disagree."""


@final
@dataclass(frozen=True)
class LayerHeads:
    """One layer's map of heads, the expected one, and whether the model repeats keys by itself."""

    module: str
    found: HeadMap
    expected: HeadMap
    repeated: bool = False

    @property
    def wrong(self) -> int:
        """How many query heads read another KV head than expected."""
        return sum(map(int.__ne__, self.found, self.expected))

    @property
    def tiled(self) -> bool:
        """Whether query head h reads KV head h % kv_heads."""
        return self.found == tuple(h % len(set(self.expected)) for h in range(len(self.found)))


def layer_heads(call: AttentionCall, name: str) -> LayerHeads | None:
    """None where the kernel's output has no axis of heads, or its heads do not divide."""
    output = call.run()[0]
    heads, kv_heads = call.query_BHTD.shape[1], call.key_BGSD.shape[1]
    shaped = isinstance(output, Tensor) and output.ndim == 4 and output.shape[2] == heads
    if not shaped or heads % kv_heads:
        return None
    repeated = groups_of_equal_keys(call) if kv_heads == heads else None
    if repeated is not None:
        first, wanted = repeated
        read = tuple(NOTHING if head == NOTHING else first[head] for head in _map(call, output))
        return LayerHeads(name, read, wanted, repeated=True)
    expected = tuple(head // (heads // kv_heads) for head in range(heads))
    return LayerHeads(name, _map(call, output), expected)


def _map(call: AttentionCall, usual_BTHD: Tensor) -> HeadMap:
    """Read the number of the KV head behind each query head, one binary digit (of the number plus
    one) per kernel call.
    """
    kv_heads = call.key_BGSD.shape[1]
    numbers: list[HeadMap] = []
    for part in ("value_BGSD", "key_BGSD"):
        code_H = torch.zeros(call.query_BHTD.shape[1], dtype=torch.long)
        for digit in range(kv_heads.bit_length()):
            heads = [g for g in range(kv_heads) if (g + 1) >> digit & 1]
            moved_BTHD = _disturbed(call, part, heads)
            same_BTHD = (moved_BTHD == usual_BTHD) | (moved_BTHD.isnan() & usual_BTHD.isnan())
            code_H += (~same_BTHD).flatten(0, 1).any(0).any(-1).cpu().long() << digit
        numbers.append(tuple(int(code) - 1 for code in code_H))
    # a query with a single visible key does not depend on it: then only the values can tell
    pairs = zip(*numbers, strict=True)
    return tuple(value if key in (value, NOTHING) else NOTHING for value, key in pairs)


def _disturbed(call: AttentionCall, part: str, heads: list[int]) -> Tensor:
    changed_BGSD = getattr(call, part).clone()
    # heads of zeros have to change as well
    changed_BGSD[:, heads] = changed_BGSD[:, heads] * DISTURB + (changed_BGSD[:, heads] == 0)
    output_BTHD: Tensor = replace(call, **{part: changed_BGSD}).run()[0]
    return output_BTHD


def groups_of_equal_keys(call: AttentionCall) -> tuple[HeadMap, HeadMap] | None:
    """The first head with the same keys, for each head, and the expected one; None where no keys
    repeat.
    """
    keys = call.key_BGSD.unbind(1)
    first = tuple(
        next(h for h, other in enumerate(keys) if torch.equal(other, key)) for key in keys
    )
    sizes = {first.count(head) for head in first}
    if len(sizes) > 1 or sizes == {1}:
        return None  # heads that are equal by chance, such as two of zeros, are no groups
    (size,) = sizes
    return first, tuple(h - h % size for h in range(len(first)))


def in_words(found: HeadMap) -> str:
    """0, 0, 1, 1 as `query heads 0 1 -> KV 0, 2 3 -> KV 1`."""
    groups: dict[int, list[str]] = {}
    for head, read in enumerate(found):
        groups.setdefault(read, []).append(str(head))
    return "query heads " + ", ".join(
        f"{' '.join(heads)} -> {'no single KV head' if read == NOTHING else f'KV {read}'}"
        for read, heads in groups.items()
    )
