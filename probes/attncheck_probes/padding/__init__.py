"""A padded row gives the logits that it gives alone.

What it checks
    Rows of unequal lengths in one batch, padded on the left or on the right by several amounts,
    give each real token the logits that its row gives alone, whichever row is the full one. The
    tokens under the padding change nothing, nor do tokens that the mask hides in the middle of a
    row. Hiding real tokens does change the logits: the mask is read, and means the same as int64,
    as booleans, as int32 and as float32. Rows without a visible token stay finite. The padding id
    inside a text is text: a mask of ones and no mask mean the same.

Why it matters
    Batches are padded, single prompts are not: a fault here makes the answer depend on the
    neighbours, and only the longest row is right. Padding can leak through a convolution, a cache,
    chunk boundaries that count it, or one implementation that drops the mask; positions can count
    it.

How it measures
    One batch of three rows against three forwards. Left padding with explicit positions (counted
    from the first real token) in each implementation, at once and with the padded batch decoded on
    a cache; with positions left to the model. The rows in reverse order on a cache, and with other
    tokens under the padding. One padded row by itself. A row of nothing but padding. Padding
    between the tokens of a row: behind prompts that were padded on the right, and in front of the
    shorter texts of a second turn. Encoder inputs of two lengths under a decoder that runs in
    steps.

False alarms
    Without `position_ids`, models with learned or sinusoidal positions count the padding: a `warn`,
    since generate() passes them. Models without that argument cannot be left-padded by design: a
    figure. So are rows of a model whose logits depend on the length of the whole row (LSH
    attention, or a fault that `future-token` finds), and tokens behind padding in the middle of a
    row where windows or biases count slots: one forward of the batch says so. Eager attention in
    plain float64 turns padded rows into NaN, since the smallest float64 becomes minus infinity in a
    float32 softmax: `warn`, and a trap of the library where its own models do so as well. Models
    that make a mask from the padding id where none is given: `warn`. A dtype of the mask that a
    model refuses is skipped.

References
    Hugging Face transformers issues 32848 (only the longest row right), 40214 (chunk boundaries
    that count padding).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from attncheck.probing import (
    Cause,
    ForwardSpec,
    Mask2D,
    Measurement,
    Padded,
    Probe,
    Subject,
    attempt,
    blocks,
    decode_chunks,
    media_batches,
    pad_rows,
    unnamed,
)
from attncheck_probes.padding import masks_2d, rows, turns
from attncheck_probes.padding.encoder_rows import padded_encoder, passed_output

IMPLEMENTATIONS = ("eager", "sdpa")
IGNORED = "attention-mask-ignored"
Measured = Callable[[Subject, Padded, str], Measurement]
OF_ENCODERS: dict[str, Measured] = {
    "encoder inputs of two lengths, in steps": padded_encoder,
    "the encoder's output in the place of a padded input": passed_output,
}


@dataclass(frozen=True, kw_only=True)
class Padding(Probe):
    """Pads a batch and compares each row with itself alone."""

    name = "padding"
    title = "padded rows give the logits that they give alone"
    needs = ("sees_history", "pads")
    controls = (
        "padding-visible",
        "position-ignores-padding",
        "nan-masked-row",
        IGNORED,
        "right-padding-visible",
        "new-padding-visible",
        "encoder-mask-of-first-row",
    )

    amounts: tuple[int, ...] = ()

    def measure(self, subject: Subject) -> Iterator[Measurement]:
        """What is hidden and what matters first, then each row against itself alone."""
        batch = pad_rows(subject, self.amounts)
        for name, measured in _cases(subject, batch).items():
            yield attempt(name, measured, subject, batch, name)
        yield from media_batches.padded(subject)


def _cases(subject: Subject, batch: Padded) -> dict[str, Measured]:
    chunks = decode_chunks(subject, batch.length, batch.length - rows.TAIL)
    others = [each for each in IMPLEMENTATIONS if each != subject.attn]
    cached = "decoded on a padded cache"
    encoder = OF_ENCODERS if subject.forward_adapter.fixed else {}
    if not subject.can.mask_2d:
        return encoder
    return {
        "the 2D mask matters": _mask_matters,
        "left, tokens under the padding changed": partial(rows.content, side="left"),
        "right, tokens under the padding changed": partial(rows.content, side="right"),
        "left, explicit positions": rows.left,
        "right, implicit positions": rows.right,
        "left, implicit positions": rows.implicit,
        f"left, {cached}, {subject.attn}": partial(rows.left, chunks=chunks),
        **{
            f"left, {how}, {attn}": partial(rows.left, attn=attn, chunks=fed)
            for attn in others
            for how, fed in (("explicit positions", ()), (cached, chunks))
        },
        f"left, rows reversed, {cached}": partial(rows.rows_reversed, chunks=chunks),
        "left, one row, explicit positions": rows.one_row,
        f"left, one row, {cached}": partial(rows.one_row, chunks=chunks),
        f"right, {cached}": turns.right_decoded,
        "left, lengths around whole blocks": rows.lengths,
        "a second turn, padded in front": turns.second_turn,
        **encoder,
        "a row of nothing but padding": masks_2d.empty_row,
        "a hole in the mask": masks_2d.hole,
        **{
            f"left, 2D mask as {dtype}": partial(masks_2d.other_dtype, dtype=dtype)
            for dtype in masks_2d.DTYPES
        },
        "the padding id as text": masks_2d.padding_id_as_text,
        "eager in plain float64": masks_2d.eager_in_plain_float64,
    }


def _mask_matters(subject: Subject, batch: Padded, name: str) -> Measurement:
    hidden, usual = batch.length // 3, ForwardSpec(subject.inputs.tokens)
    hiding = replace(usual, mask=Mask2D(((0,) * hidden + (1,) * (batch.length - hidden),)))
    note, at = f"with the first {hidden} tokens masked", slice(hidden, None)
    case = subject.compare_forwards(name, hiding, usual, at=at, expect="differ", note=note)
    if case.beyond or unnamed() or _reads_4d(subject, usual):
        return case
    return replace(case, cause=Cause(IGNORED, case.max_abs))


def _reads_4d(subject: Subject, usual: ForwardSpec) -> bool:
    """Whether a 4D mask changes the logits: then only the zeros of 2D masks are lost on the way."""
    if not subject.can.takes_mask_4d:
        return False
    half, length = subject.inputs.length // 2, subject.inputs.length
    masked = replace(usual, mask=blocks((half, length - half)))
    return subject.compare_forwards("4D", masked, usual, at=slice(half, None)).beyond
