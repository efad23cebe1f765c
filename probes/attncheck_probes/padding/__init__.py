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
    tokens under the padding. A row of nothing but padding.

False alarms
    Without `position_ids`, models with learned or sinusoidal positions count the padding: a `warn`,
    since generate() passes them. Models without that argument cannot be left-padded by design: a
    figure. So are rows of a model whose logits depend on the length of the whole row (LSH
    attention, or a fault that `future-token` finds). A mask that changes nothing in a model that
    computes no attention through the library's interface is by design and skipped. Eager attention
    in plain float64 turns padded rows into NaN, since the smallest float64 becomes minus infinity
    in a float32 softmax: `warn`, and `fail` where just that was asked for. Models that make a mask
    from the padding id where none is given: `warn`. A dtype of the mask that a model refuses is
    skipped.

References
    Hugging Face transformers issues 32848 (only the longest row right), 40214 (chunk boundaries
    that count padding).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import final

from attncheck.probing import (
    Comparison,
    ForwardSpec,
    Mask2D,
    Measurement,
    Padded,
    Probe,
    Side,
    Subject,
    Verdict,
    attempt,
    counting,
    decode_chunks,
    holes,
    left_padded,
    merged,
    pad_rows,
    reference_forward,
)
from attncheck_probes.padding import masks_2d

# Axes: B batch, T positions, V vocabulary.

IMPLEMENTATIONS = ("eager", "sdpa")
TAIL = 3
Measured = Callable[[Subject, Padded, str], Measurement]


@final
@dataclass(frozen=True, kw_only=True)
class Padding(Probe):
    """Pads a batch and compares each row with itself alone."""

    name = "padding"
    title = "padded rows give the logits that they give alone"
    needs = ("sees_history", "reads_mask")
    controls = (
        "padding-visible",
        "position-ignores-padding",
        "nan-masked-row",
        "attention-mask-ignored",
    )

    amounts: tuple[int, ...] = ()

    def measure(self, subject: Subject) -> Iterator[Measurement]:
        """What is hidden and what matters first, then each row against itself alone."""
        batch = pad_rows(subject, self.amounts)
        for name, measured in _cases(subject, batch).items():
            yield attempt(name, measured, subject, batch, name, may_refuse=True)


def _cases(subject: Subject, batch: Padded) -> dict[str, Measured]:
    chunks = decode_chunks(subject, batch.length, batch.length - TAIL)
    others = [each for each in IMPLEMENTATIONS if each != subject.attn]
    cached = "decoded on a padded cache"
    return {
        "the 2D mask matters": _mask_matters,
        "left, tokens under the padding changed": partial(_content, side="left"),
        "right, tokens under the padding changed": partial(_content, side="right"),
        "left, explicit positions": _left,
        "right, implicit positions": _right,
        "left, implicit positions": _implicit,
        f"left, {cached}, {subject.attn}": partial(_left, chunks=chunks),
        **{
            f"left, {how}, {attn}": partial(_left, attn=attn, chunks=fed)
            for attn in others
            for how, fed in (("explicit positions", ()), (cached, chunks))
        },
        f"left, rows reversed, {cached}": partial(_reversed, chunks=chunks),
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
    return subject.compare_forwards(name, hiding, usual, at=at, expect="differ", note=note)


def _content(subject: Subject, batch: Padded, name: str, side: Side) -> Measurement:
    """Other tokens under the padding, and the rows in reverse order."""
    explicit = side == "left" and bool(subject.can.takes_positions)
    usual = batch.spec(side, salt=1, explicit=explicit)
    changed = batch.reversed.spec(side, salt=2, explicit=explicit)
    got_BTV, want_BTV = subject.logits(changed).flip(0), subject.logits(usual)
    cases, note = [], "and the rows reversed"
    for row, real in enumerate(batch.real(side)):
        pair = (got_BTV[row : row + 1, real], want_BTV[row : row + 1, real])
        spec = (changed, _one_row(subject, batch, row, changed))
        cases.append(subject.compare(name, *pair, offset=real.start, note=note, spec=spec))
    return merged(name, cases)


def _left(
    subject: Subject,
    batch: Padded,
    name: str,
    attn: str | None = None,
    chunks: tuple[int, ...] = (),
) -> Measurement:
    """Left padding, positions counted from the first real token where the model takes positions."""
    if chunks:
        subject.can.steps.require()
    return _alone(subject, batch, name, "left", left_padded(subject, batch, chunks, attn))


def _reversed(subject: Subject, batch: Padded, name: str, chunks: tuple[int, ...]) -> Measurement:
    return _left(subject, batch.reversed, name, chunks=chunks)


def _right(subject: Subject, batch: Padded, name: str) -> Measurement:
    return _alone(subject, batch, name, "right", batch.spec("right", salt=1))


def _implicit(subject: Subject, batch: Padded, name: str) -> Measurement:
    """With the real padding id, as a tokenizer fills it in: some models count their positions from
    it.
    """
    note = "without `position_ids` the padding is counted"
    return _alone(subject, batch, name, "left", batch.spec("left"), Verdict.WARN, note)


def _alone(
    subject: Subject,
    batch: Padded,
    name: str,
    side: Side,
    spec: ForwardSpec,
    broken: Verdict = Verdict.FAIL,
    note: str = "",
) -> Measurement:
    """Each row of a padded batch against its own forward; logits under the padding must be finite
    too.
    """
    logits_BTV = subject.logits(spec)
    case = _against(subject, batch, name, side, spec, broken)
    if case.beyond and spec.attn:
        # implementations that differ without padding as well are left to `implementations`
        case = _against(subject, batch, name, side, spec, broken, spec.attn)
    divergence = replace(case.divergence, nonfinite=holes(logits_BTV))
    case = replace(case, divergence=divergence, note=note if case.beyond else "")
    if case.nonfinite or not case.beyond:
        return case
    design = subject.can.keeps_prefix.reason
    if side == "left" and (reason := subject.can.takes_positions.reason):
        design = f"{reason}: padding on the left moves its positions"
    return replace(case, expect="figure", note=design) if design else case


def _against(
    subject: Subject,
    batch: Padded,
    name: str,
    side: Side,
    spec: ForwardSpec,
    broken: Verdict,
    attn: str | None = None,
) -> Comparison:
    cases = []
    for row, real in enumerate(batch.real(side)):
        alone = replace(_one_row(subject, batch, row, spec), attn=attn)
        cases.append(
            subject.compare_forwards(name, spec, alone, row=row, at=real, alone=True, broken=broken)
        )
    return merged(name, cases)


def _one_row(subject: Subject, batch: Padded, row: int, spec: ForwardSpec) -> ForwardSpec:
    tokens = batch.rows[row]
    positions = counting(1, len(tokens)) if spec.positions else None
    if spec.chunks:
        return reference_forward(subject, tokens, len(tokens) - TAIL, positions)
    return ForwardSpec((tokens,), positions=positions)
