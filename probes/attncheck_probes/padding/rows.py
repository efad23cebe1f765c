"""Rows of a padded batch against their own forwards.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from dataclasses import replace

from attncheck.probing import (
    Comparison,
    ForwardSpec,
    Measurement,
    Padded,
    Side,
    Subject,
    Unsupported,
    Verdict,
    counting,
    holes,
    left_padded,
    merged,
    reference_forward,
)

TAIL = 3
AROUND_BLOCKS = (9, 17, 33, 64, 65)
"""Lengths of one token more than blocks of usual sizes, and of whole blocks."""


def content(subject: Subject, batch: Padded, name: str, side: Side) -> Measurement:
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


def left(
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


def rows_reversed(
    subject: Subject, batch: Padded, name: str, chunks: tuple[int, ...]
) -> Measurement:
    """`left` with the rows in reverse order."""
    return left(subject, batch.reversed, name, chunks=chunks)


def one_row(
    subject: Subject, batch: Padded, name: str, chunks: tuple[int, ...] = ()
) -> Measurement:
    """`left` with the shortest row alone: a mask may be dropped where there is no other row."""
    shortest = min(batch.rows, key=len)
    return left(subject, replace(batch, rows=(shortest,)), name, chunks=chunks)


def lengths(subject: Subject, batch: Padded, name: str) -> Measurement:
    """Batches whose length is whole blocks, and one token more: code that works in blocks pads
    them, and errs in the last one.
    """
    fitting = [each for each in AROUND_BLOCKS if each <= subject.inputs.room]
    if not fitting:
        raise Unsupported(f"the context of {subject.inputs.room} tokens holds no block")
    fresh = subject.inputs.fresh
    longest = fresh(fitting[-1], salt=41), fresh(fitting[-1], salt=43)
    cases = []
    for length in fitting:
        pair = (longest[0][:length], longest[1][: length - max(1, length // 3)])
        small = replace(batch, rows=pair, length=length)
        case = _alike(subject, small, name, ForwardSpec(longest))
        cases.append(replace(case, note=f"a batch of {length} tokens"))
    return merged(name, cases)


def _alike(subject: Subject, batch: Padded, name: str, whole: ForwardSpec) -> Comparison:
    """Each row of a batch against the beginning of longer rows where that is what it gives alone,
    otherwise against its own forward.
    """
    spec = left_padded(subject, batch)
    if subject.can.keeps_prefix:
        got_BTV, want_BTV = subject.logits(spec), subject.logits(whole)
        cases = []
        for row, real in enumerate(batch.real("left")):
            pair = got_BTV[row : row + 1, real], want_BTV[row : row + 1, : len(batch.rows[row])]
            cases.append(subject.compare(name, *pair, offset=real.start))
        case = merged(name, cases)
        if not case.beyond:
            return case
        alone = ForwardSpec((batch.rows[0],))
        if subject.compare_forwards(name, alone, whole, row=0, at=slice(0, batch.length)).beyond:
            raise Unsupported("a row's logits depend on how long it is, without padding too")
    return _alone(subject, batch, name, "left", spec)


def right(subject: Subject, batch: Padded, name: str) -> Measurement:
    """Right padding, positions left to the model."""
    return _alone(subject, batch, name, "right", batch.spec("right", salt=1))


def implicit(subject: Subject, batch: Padded, name: str) -> Measurement:
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
) -> Comparison:
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
    reason = subject.can.takes_positions.reason
    if side == "left" and reason and subject.can.counts_positions:
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
