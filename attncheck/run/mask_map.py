"""What each query of each layer really reads, as a picture, beside what the config promises.

Measured at the kernel with identity values, or in the gradient where the kernel is out of reach;
never from a mask tensor, which a kernel may ignore.

Axes: T query positions, S key positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

from attncheck.core.errors import Unsupported, UsageError
from attncheck.judge.attention_span import (
    VisibleKeys,
    exemption,
    observed_at_kernel,
    observed_in_gradient,
)
from attncheck.judge.config_spec import FULL, span_spec
from attncheck.model.forward_spec import ForwardSpec, Mask2D
from attncheck.model.padding import pad_id
from attncheck.model.subject import Subject

READ, EXTRA, LACKING, NEITHER, UNKNOWN = "#", "+", "-", ".", " "
"""Read as promised; read and not promised; promised and not read; neither; not asked, or the query
is padding.
"""


@final
@dataclass(frozen=True, kw_only=True)
class Ask:
    """How the model is asked: padding slots on one side, chunks on a cache, documents packed into
    one row.
    """

    padding: int = 0
    side: Literal["left", "right"] = "left"
    chunks: tuple[int, ...] = ()
    documents: tuple[int, ...] = ()


@final
@dataclass(frozen=True, kw_only=True)
class LayerMap:
    """One layer: a text for each query with a sign for each key, what was promised, and what speaks
    for it all the same.
    """

    name: str
    index: int | None
    promise: str
    rows: tuple[str, ...]
    how: str
    excuse: str = ""

    @property
    def wrong(self) -> int:
        """Pairs of query and key that are not as promised."""
        return sum(row.count(EXTRA) + row.count(LACKING) for row in self.rows)

    @property
    def holds(self) -> bool:
        """Whether it reads what it should, or has a reason not to."""
        return not self.wrong or bool(self.excuse)


def maps(subject: Subject, ask: Ask) -> list[LayerMap]:
    """The map of every layer that attends to the model's own tokens.

    Raises:
        UsageError: chunks or documents that do not fit the row.
        Unsupported: neither the kernel nor a gradient shows what is read.
    """
    spec, real_T, document_T = _asked(subject, ask)
    seen = _seen(subject, spec)
    row = subject.inputs.other(spec.tokens[0])
    others = _seen(
        subject, ForwardSpec((row,), **{k: v for k, v in vars(spec).items() if k != "tokens"})
    )
    names = dict.fromkeys(each.name for each in seen)
    return [
        _map(subject, [each for each in seen if each.name == name], others, real_T, document_T)
        for name in names
    ]


def _asked(subject: Subject, ask: Ask) -> tuple[ForwardSpec, Tensor, Tensor]:
    """The pass, which tokens are real, and the number of each token's document."""
    row, length = subject.inputs.row, subject.inputs.length
    if ask.chunks and sum(ask.chunks) != length + ask.padding:
        raise UsageError(
            f"--chunks: {sum(ask.chunks)} tokens, where the row has {length + ask.padding}"
        )
    if ask.documents and sum(ask.documents) != length:
        raise UsageError(f"--packed: {sum(ask.documents)} tokens, where the row has {length}")
    if ask.documents and (ask.padding or ask.chunks):
        raise UsageError("--packed: packed rows are not padded, nor fed in chunks")
    fill, ones = (pad_id(subject),) * ask.padding, (1,) * length
    left = ask.side == "left"
    tokens = fill + row if left else row + fill
    real = (0,) * ask.padding + ones if left else ones + (0,) * ask.padding
    counted = tuple(max(0, sum(real[: t + 1]) - 1) for t in range(len(real)))
    restarting = tuple(t for size in ask.documents for t in range(size))
    explicit = bool(ask.padding and subject.can.takes_positions)
    spec = ForwardSpec(
        (tokens,),
        chunks=ask.chunks,
        positions=(restarting,) if ask.documents else (counted,) if explicit else None,
        mask=Mask2D((real,)) if ask.padding else None,
    )
    numbers = [
        number for number, size in enumerate(ask.documents or (len(tokens),)) for _ in range(size)
    ]
    return spec, torch.tensor(real, dtype=torch.bool), torch.tensor(numbers)


def _seen(subject: Subject, spec: ForwardSpec) -> list[VisibleKeys]:
    _ = subject.can.first_position  # tried by forwards that must not be among those recorded
    if subject.can.watch:
        return observed_at_kernel(subject, spec)
    if spec.chunks or spec.mask is not None:
        raise Unsupported(
            f"{subject.can.watch.reason}: the gradient shows plain forwards only, without padding and chunks"
        )
    return observed_in_gradient(subject, spec)


def _map(
    subject: Subject,
    seen: list[VisibleKeys],
    others: list[VisibleKeys],
    real_T: Tensor,
    document_T: Tensor,
) -> LayerMap:
    """One layer's calls laid into one picture, against the promise that fits best."""
    first, total = seen[0], len(real_T)
    promise = span_spec(subject.text_config, first.module, first.index)
    own_TS = (document_T[:, None] == document_T[None]) & real_T[None]
    pictures = [
        (str(reach), _picture(seen, reach.allowed_TS(total, total) & own_TS, real_T))
        for reach in promise.spans or (FULL,)
    ]
    named, rows = min(
        pictures, key=lambda each: sum(row.count(EXTRA) + row.count(LACKING) for row in each[1])
    )
    reasons = [promise.reason, *(exemption(each, others) for each in seen)]
    return LayerMap(
        name=first.name,
        index=first.index,
        promise=named + ("" if promise.spans else ", since the config says nothing else"),
        rows=rows,
        how=first.how,
        excuse=next((reason for reason in reasons if reason), ""),
    )


def _picture(seen: list[VisibleKeys], allowed_TS: Tensor, real_T: Tensor) -> tuple[str, ...]:
    lines = [UNKNOWN * len(real_T)] * len(real_T)
    for each in seen:
        start = each.cut
        for reads_S, query in zip(each.reads_TS.cpu(), each.positions, strict=True):
            if real_T[query]:
                read_S = torch.zeros(len(real_T), dtype=torch.bool)
                read_S[start : each.stop] = reads_S
                lines[query] = "".join(map(_sign, read_S.tolist(), allowed_TS[query].tolist()))
    return tuple(lines)


def _sign(read: bool, promised: bool) -> str:
    return (READ if promised else EXTRA) if read else (LACKING if promised else NEITHER)


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
    """Layers with the same picture and promise together, in the order of the first of each."""
    groups: dict[tuple[str, tuple[str, ...]], list[LayerMap]] = {}
    for layer in layers:
        groups.setdefault((layer.promise, layer.rows), []).append(layer)
    yield from groups.values()
