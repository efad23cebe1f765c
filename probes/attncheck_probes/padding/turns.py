"""Padding between the tokens of a row, as a conversation on a cache leaves it: behind prompts that
were padded on the right, and in front of the shorter texts of a second turn.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

from attncheck.probing import (
    Cause,
    Comparison,
    ForwardSpec,
    Mask2D,
    Measurement,
    Padded,
    Row,
    Subject,
    Unsupported,
    counting,
    decode_chunks,
    following,
    merged,
    reference_forward,
)
from attncheck_probes.padding.rows import TAIL

BY_SLOT = "one forward of the same batch differs in the same way: hidden slots count for the model"


@final
@dataclass(frozen=True)
class Gap:
    """A row with padding in [start, start + width), and its text without it."""

    text: Row
    start: int
    width: int

    def filled(self, before: Row, gap: Row) -> Row:
        """Numbers of the text's tokens with `gap` where the padding is."""
        return (*before[: self.start], *gap[: self.width], *before[self.start :])

    @property
    def mask(self) -> Row:
        """1 for each token of the text."""
        return self.filled((1,) * len(self.text), (0,) * self.width)

    @property
    def positions(self) -> Row:
        """Tokens of the text are counted; padding repeats the number before it."""
        last = max(0, self.start - 1)
        return self.filled(tuple(range(len(self.text))), (last,) * self.width)


def right_decoded(subject: Subject, batch: Padded, name: str) -> Measurement:
    """Prompts padded on the right, then real tokens in steps and in a chunk."""
    prompt = batch.length - TAIL
    gaps = [Gap(row, prompt - width, width) for row, width in _texts(batch)]
    chunks = decode_chunks(subject, batch.length, prompt)
    return _decoded(subject, batch, name, gaps, chunks, "right-padding-visible")


def second_turn(subject: Subject, batch: Padded, name: str) -> Measurement:
    """Prompts of one length on a cache, then texts of unequal lengths padded in front."""
    half = batch.length // 2
    gaps = [Gap(row, half, width) for row, width in _texts(batch)]
    chunks = (half, batch.length - half)
    case = _decoded(subject, batch, name, gaps, chunks, "new-padding-visible")
    if not case.beyond or subject.can.chunks_agree:
        return case
    return following(case, "decode-paths", subject.can.chunks_agree.reason)


def _texts(batch: Padded) -> list[tuple[Row, int]]:
    """The main row without its last tokens, as many as each row of the batch has padding."""
    widths = [batch.padding(row) for row in range(len(batch.rows))]
    if batch.length - TAIL - max(widths) < 1 or batch.length // 2 <= max(widths):
        raise Unsupported(f"a row of {batch.length} tokens has no room for padding in its middle")
    return [(batch.inputs.row[: batch.length - width], width) for width in widths]


def _decoded(
    subject: Subject,
    batch: Padded,
    name: str,
    gaps: list[Gap],
    chunks: tuple[int, ...],
    fault: str,
) -> Measurement:
    """The last tokens of each row against the row alone.

    Where one forward of the same batch differs from it too, as windows and biases that count slots
    do, that forward is the reference.
    """
    subject.can.steps.require()
    spec = ForwardSpec(
        tuple(each.filled(each.text, batch.inputs.fresh(each.width, 51)) for each in gaps),
        chunks=chunks,
        positions=tuple(each.positions for each in gaps) if subject.can.takes_positions else None,
        mask=Mask2D(tuple(each.mask for each in gaps)),
    )
    cases = [_alone(subject, name, spec, row, each) for row, each in enumerate(gaps)]
    case = merged(name, cases)
    if not case.beyond:
        return case
    at, whole = slice(batch.length - TAIL, None), replace(spec, chunks=())
    if not case.nonfinite and not subject.compare_forwards(name, spec, whole, at=at).beyond:
        return replace(case, expect="figure", note=BY_SLOT)
    return replace(case, cause=Cause(fault))


def _alone(subject: Subject, name: str, spec: ForwardSpec, row: int, gap: Gap) -> Comparison:
    positions = counting(1, len(gap.text)) if spec.positions else None
    alone = reference_forward(subject, gap.text, len(gap.text) - TAIL, positions)
    place = slice(row, row + 1), slice(spec.length - TAIL, None)
    pair = subject.logits(spec)[place], subject.logits(alone)[:, -TAIL:]
    offset = spec.length - TAIL
    return subject.compare(name, *pair, offset=offset, spec=(spec, alone), note=f"row {row}")
