"""The keys that each query of each layer really reads, as a picture, against the config.

Observed at the kernel with identity values, or in the gradient where the kernel is out of reach;
never read from a mask tensor, which a kernel may ignore.

Axes: T query positions, S key positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, final

import torch
from torch import Tensor

from attncheck.core.errors import Unsupported, UsageError
from attncheck.judge.attention_span import (
    ObservedKeys,
    exemption,
    observed_at_kernel,
    observed_in_gradient,
    signs,
)
from attncheck.judge.config_spec import FULL, span_spec
from attncheck.model.forward_spec import ForwardSpec, Mask2D
from attncheck.model.padding import pad_id
from attncheck.model.subject import Subject

READ, EXTRA, LACKING, NEITHER, UNKNOWN = "#", "+", "-", ".", " "
"""Read as specified; read but not specified; specified but not read; neither; not observed, or the
query is padding.
"""


@final
@dataclass(frozen=True, kw_only=True)
class LayerMap:
    """One layer: a text for each query with a sign for each key, what the config specifies, and why
    the layer may depart from it.
    """

    name: str
    index: int | None
    expected: str
    rows: tuple[str, ...]
    how: str
    exemption: str = ""

    @property
    def wrong(self) -> int:
        """How many pairs of query and key are not as specified."""
        return _wrong(self.rows)

    @property
    def passed(self) -> bool:
        """Whether the layer reads what it should, or has a reason not to."""
        return not self.wrong or bool(self.exemption)


def _wrong(rows: Sequence[str]) -> int:
    return sum(row.count(EXTRA) + row.count(LACKING) for row in rows)


def map_spec(
    subject: Subject,
    *,
    padding: int = 0,
    side: Literal["left", "right"] = "left",
    chunks: tuple[int, ...] = (),
    documents: tuple[int, ...] = (),
) -> ForwardSpec:
    """A forward over the main input: padded on one side, in chunks on a cache, or as packed
    documents.

    Raises:
        UsageError: chunks or documents that do not fit the input.
    """
    row, length = subject.inputs.row, subject.inputs.length
    if chunks and sum(chunks) != length + padding:
        raise UsageError(f"--chunks: {sum(chunks)} tokens, but the input has {length + padding}")
    if documents and sum(documents) != length:
        raise UsageError(f"--packed: {sum(documents)} tokens, but the input has {length}")
    if documents and (padding or chunks):
        raise UsageError("--packed: packed sequences are not padded, nor fed in chunks")
    if documents:
        restarting = tuple(position for size in documents for position in range(size))
        return ForwardSpec((row,), positions=(restarting,))
    fill = padding if side == "left" else 0, padding if side == "right" else 0
    real = (0,) * fill[0] + (1,) * length + (0,) * fill[1]
    tokens = (pad_id(subject),) * fill[0] + row + (pad_id(subject),) * fill[1]
    counted = tuple(max(0, sum(real[: at + 1]) - 1) for at in range(len(real)))
    return ForwardSpec(
        (tokens,),
        chunks=chunks,
        positions=(counted,) if padding and subject.can.takes_positions else None,
        mask=Mask2D((real,)) if padding else None,
    )


def layer_maps(subject: Subject, spec: ForwardSpec) -> list[LayerMap]:
    """The map of every layer that attends to the model's own tokens.

    Raises:
        Unsupported: neither the kernel nor a gradient shows what is read.
    """
    layers: dict[str, list[ObservedKeys]] = {}
    for each in _observed(subject, spec):
        layers.setdefault(each.name, []).append(each)
    other = replace(spec, tokens=(subject.inputs.other(spec.tokens[0]),))
    others = _observed(subject, other)
    return [_layer_map(subject, spec, calls, others) for calls in layers.values()]


def _observed(subject: Subject, spec: ForwardSpec) -> list[ObservedKeys]:
    _ = subject.can.first_position  # tried by forwards that must not be among those recorded
    if subject.can.watch:
        return observed_at_kernel(subject, spec)
    if spec.chunks or spec.mask is not None:
        reason = subject.can.watch.reason
        raise Unsupported(f"{reason}: the gradient shows forwards without padding and chunks only")
    return observed_in_gradient(subject, spec)


def _layer_map(
    subject: Subject, spec: ForwardSpec, calls: list[ObservedKeys], others: list[ObservedKeys]
) -> LayerMap:
    """The calls of one layer in one picture, against the span that fits best."""
    first, real_T = calls[0], _real(spec)
    total = len(real_T)
    reads_TS = torch.zeros(total, total, dtype=torch.bool)
    shown_T = torch.zeros(total, dtype=torch.bool)
    for each in calls:
        queries = list(each.positions)
        reads_TS[queries, each.cut : each.stop] = each.reads_TS.cpu()
        shown_T[queries] = real_T[queries]
    document_T = _documents(spec, total)
    own_TS = (document_T[:, None] == document_T[None]) & real_T[None]
    specified = span_spec(subject.text_config, first.module, first.index)
    pictures = [
        (str(span), _picture(reads_TS, span.allowed_TS(total, total) & own_TS, shown_T))
        for span in specified.spans or (FULL,)
    ]
    expected, rows = min(pictures, key=lambda each: _wrong(each[1]))
    reasons = [specified.reason, *(exemption(each, others) for each in calls)]
    return LayerMap(
        name=first.name,
        index=first.index,
        expected=expected + ("" if specified.spans else ", since the config says nothing else"),
        rows=rows,
        how=first.how,
        exemption=next(filter(None, reasons), ""),
    )


def _real(spec: ForwardSpec) -> Tensor:
    """Which tokens are not padding."""
    if isinstance(spec.mask, Mask2D):
        return torch.tensor(spec.mask.rows[0], dtype=torch.bool)
    return torch.ones(spec.length, dtype=torch.bool)


def _documents(spec: ForwardSpec, total: int) -> Tensor:
    """The number of each token's document: positions that restart begin a new one."""
    if spec.positions is None or spec.mask is not None:
        return torch.zeros(total, dtype=torch.long)
    return (torch.tensor(spec.positions[0]) == 0).cumsum(0)


def _picture(reads_TS: Tensor, allowed_TS: Tensor, shown_T: Tensor) -> tuple[str, ...]:
    rows = signs(reads_TS, allowed_TS)
    hidden = UNKNOWN * len(rows)
    return tuple(row if shown else hidden for row, shown in zip(rows, shown_T, strict=True))


def shrunk(rows: Sequence[str], most: int) -> list[str]:
    """The picture at most `most` signs wide: each sign stands for a square of pairs and shows the
    worst of them.
    """
    side = -(-len(rows) // most)
    if side == 1:
        return list(rows)
    return [
        "".join(_worst(rows[top : top + side], left, side) for left in range(0, len(rows), side))
        for top in range(0, len(rows), side)
    ]


def _worst(lines: Sequence[str], left: int, side: int) -> str:
    found = {sign for line in lines for sign in line[left : left + side]}
    return next((sign for sign in (EXTRA, LACKING, READ, NEITHER) if sign in found), UNKNOWN)


def alike(layers: Sequence[LayerMap]) -> Iterator[list[LayerMap]]:
    """Layers with the same picture and specification, in the order of the first of each."""
    groups: dict[tuple[str, tuple[str, ...]], list[LayerMap]] = {}
    for layer in layers:
        groups.setdefault((layer.expected, layer.rows), []).append(layer)
    yield from groups.values()
