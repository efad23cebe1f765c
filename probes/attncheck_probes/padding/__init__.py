"""A padded row says what it says alone.

What it checks
    Rows of unequal lengths in one batch, padded on the left or on the right by several amounts,
    give each real token the logits that its row gives alone, whichever row is the full one. The
    tokens under the padding move nothing, nor do tokens that the mask hides in the middle of a row.
    Hiding tokens that are text does move something: the mask is read, and means the same as int64,
    as booleans, as int32 and as float32. Rows with nothing to read stay finite. The padding id
    inside a text is text: a mask of ones and no mask mean the same.

Why it matters
    Batches are padded, single prompts are not: a fault here makes the answer depend on the
    neighbours, and only the longest row is right. Padding can leak through a convolution, a cache,
    chunk borders that count it, or one implementation that drops the mask; positions can count it.

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
    Hugging Face transformers issues 32848 (only the longest row right), 40214 (chunk borders that
    count padding).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, final

from attncheck.probing import (
    Comparison,
    ForwardSpec,
    Mask2D,
    Measurement,
    Padded,
    Probe,
    Row,
    Side,
    Subject,
    Verdict,
    attempt,
    counting,
    eager_in_plain_float64,
    holes,
    merged,
    pad_rows,
    pieces,
    yardstick,
)
from attncheck_probes.padding import masks_2d as masked

# Axes: B batch, T positions, V vocabulary.

IMPLEMENTATIONS = ("eager", "sdpa")
TAIL = 3
COUNTED = "without `position_ids` the padding is counted"


@final
@dataclass(frozen=True, kw_only=True)
class Padding(Probe):
    """Pads a batch and compares each row with itself alone."""

    name: ClassVar[str] = "padding"
    title: ClassVar[str] = "padded rows give the logits that they give alone"
    needs: ClassVar[tuple[str, ...]] = ("sees_history", "reads_mask")
    controls: ClassVar[tuple[str, ...]] = (
        "padding-visible",
        "position-ignores-padding",
        "nan-masked-row",
        "attention-mask-ignored",
    )

    amounts: tuple[int, ...] = ()

    def measure(self, subject: Subject) -> Iterator[Measurement]:
        """What is hidden and what matters first, then each row against itself alone."""
        batch = pad_rows(subject, self.amounts)
        first: dict[str, Callable[[Subject, Padded, str], Measurement]] = {
            "the 2D mask matters": _mask_matters,
            "left, tokens under the padding changed": partial(_content, side="left"),
            "right, tokens under the padding changed": partial(_content, side="right"),
            "left, explicit positions": partial(_left, attn=None, chunks=()),
            "right, implicit positions": _right,
            "left, implicit positions": _implicit,
        }
        for name, measured in first.items():
            yield attempt(name, measured, subject, batch, name, may_refuse=True)
        for attn in (None, *(each for each in IMPLEMENTATIONS if each != subject.attn)):
            for chunks in ((), pieces(subject, batch.length, batch.length - TAIL)):
                name = f"left, {'decoded on a padded cache' if chunks else 'explicit positions'}, {attn or subject.attn}"
                if attn or chunks:
                    yield attempt(
                        name,
                        partial(_left, attn=attn, chunks=chunks),
                        subject,
                        batch,
                        name,
                        may_refuse=True,
                    )
        name, chunks = (
            "left, rows reversed, decoded on a padded cache",
            pieces(subject, batch.length, batch.length - TAIL),
        )
        yield attempt(
            name,
            partial(_left, attn=None, chunks=chunks),
            subject,
            batch.turned,
            name,
            may_refuse=True,
        )
        yield attempt(
            "a row of nothing but padding", masked.empty_row, subject, batch, may_refuse=True
        )
        yield attempt("a hole in the mask", masked.hole, subject, may_refuse=True)
        for dtype in masked.DTYPES:
            name = f"left, 2D mask as {dtype}"
            yield attempt(name, masked.other_dtype, subject, batch, name, dtype, may_refuse=True)
        yield attempt("the padding id as text", masked.padding_id_as_text, subject, may_refuse=True)
        yield attempt(
            "eager in plain float64", eager_in_plain_float64, subject, batch, may_refuse=True
        )


def _mask_matters(subject: Subject, batch: Padded, name: str) -> Measurement:
    hidden = batch.length // 3
    hiding = ForwardSpec(
        subject.inputs.tokens, mask=Mask2D(((0,) * hidden + (1,) * (batch.length - hidden),))
    )
    usual = ForwardSpec(subject.inputs.tokens)
    got_BTV, want_BTV = subject.logits(hiding)[:, hidden:], subject.logits(usual)[:, hidden:]
    note, spec = f"with the first {hidden} tokens masked", (hiding, usual)
    return subject.compare(
        name, got_BTV, want_BTV, expect="differ", offset=hidden, note=note, spec=spec
    )


def _content(subject: Subject, batch: Padded, name: str, side: Side) -> Measurement:
    """Other tokens under the padding, and the rows in reverse order."""
    explicit = side == "left" and bool(subject.can.takes_positions)
    usual, changed = (
        batch.spec(side, salt=1, explicit=explicit),
        batch.turned.spec(side, salt=2, explicit=explicit),
    )
    got_BTV, want_BTV = subject.logits(changed).flip(0), subject.logits(usual)
    cases = []
    for row, real in enumerate(batch.real(side)):
        pair = (got_BTV[row : row + 1, real], want_BTV[row : row + 1, real])
        spec = (changed, _one_row(subject, batch.rows[row], changed))
        cases.append(
            subject.compare(name, *pair, offset=real.start, note="and the rows reversed", spec=spec)
        )
    return merged(name, cases)


def _left(
    subject: Subject, batch: Padded, name: str, *, attn: str | None, chunks: tuple[int, ...]
) -> Measurement:
    """Left padding with positions counted from the first real token, where the model can be told
    them.
    """
    if chunks:
        subject.can.steps.require()
    spec = batch.spec(
        "left", salt=1, explicit=bool(subject.can.takes_positions), chunks=chunks, attn=attn
    )
    return _alone(subject, batch, name, "left", spec, Verdict.FAIL)


def _right(subject: Subject, batch: Padded, name: str) -> Measurement:
    return _alone(subject, batch, name, "right", batch.spec("right", salt=1), Verdict.FAIL)


def _implicit(subject: Subject, batch: Padded, name: str) -> Measurement:
    """With the real padding id, as a tokenizer fills it in: some models count their positions from
    it.
    """
    return _alone(subject, batch, name, "left", batch.spec("left"), Verdict.WARN, COUNTED)


def _alone(
    subject: Subject,
    batch: Padded,
    name: str,
    side: Side,
    spec: ForwardSpec,
    broken: Verdict,
    note: str = "",
) -> Comparison:
    """Each row of a padded batch against its own forward; what stands under the padding must be
    finite too.
    """
    logits_BTV = subject.logits(spec)
    case = _against(subject, batch, name, side, spec, broken, None)
    if (
        case.beyond and spec.attn
    ):  # implementations that differ without padding as well are for `implementations`
        case = _against(subject, batch, name, side, spec, broken, spec.attn)
    case = replace(
        case,
        divergence=replace(case.divergence, nonfinite=holes(logits_BTV)),
        note=note if case.beyond else "",
    )
    if case.nonfinite or not case.beyond:
        return case
    shifted = subject.can.takes_positions.reason if side == "left" else ""
    designed = (
        f"{shifted}: padding on the left moves its positions"
        if shifted
        else subject.can.keeps_prefix.reason
    )
    return replace(case, expect="figure", note=designed) if designed else case


def _against(
    subject: Subject,
    batch: Padded,
    name: str,
    side: Side,
    spec: ForwardSpec,
    broken: Verdict,
    attn: str | None,
) -> Comparison:
    logits_BTV, cases = subject.logits(spec), []
    for row, real in enumerate(batch.real(side)):
        alone = replace(_one_row(subject, batch.rows[row], spec), attn=attn)
        pair = (logits_BTV[row : row + 1, real], subject.logits(alone))
        cases.append(
            subject.compare(name, *pair, broken=broken, offset=real.start, spec=(spec, alone))
        )
    return merged(name, cases)


def _one_row(subject: Subject, row: Row, spec: ForwardSpec) -> ForwardSpec:
    positions = counting(1, len(row)) if spec.positions else None
    return (
        yardstick(subject, row, len(row) - TAIL, positions)
        if spec.chunks
        else ForwardSpec((row,), positions=positions)
    )
