"""2D masks beyond padding at one end: with a hole inside, of another dtype, and none where the
padding id stands in the text.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from dataclasses import replace

from attncheck.probing import (
    ForwardSpec,
    Mask2D,
    Measurement,
    Padded,
    Subject,
    Unsupported,
    Verdict,
    all_ones,
    holes,
    merged,
    own_pad_id,
)

DTYPES = ("bool", "int32", "float32")
"""What a mask may be instead of the int64 that tokenizers return."""
LEAST = 6
"""A row of fewer tokens has no room for a hole between text and text."""


def empty_row(subject: Subject, batch: Padded) -> Measurement:
    """One case: a second row that is padding from end to end must not hurt the first, nor turn into
    NaN itself.
    """
    tokens = (subject.inputs.row, (batch.pad,) * batch.length)
    spec = ForwardSpec(tokens, mask=Mask2D(((1,) * batch.length, (0,) * batch.length)))
    logits_BTV, alone = subject.logits(spec), ForwardSpec(subject.inputs.tokens)
    name = "a row of nothing but padding"
    case = subject.compare(name, logits_BTV[:1], subject.logits(alone), spec=(spec, alone))
    return replace(case, divergence=replace(case.divergence, nonfinite=holes(logits_BTV)))


def hole(subject: Subject) -> Measurement:
    """One case: tokens that the mask hides in the middle of a row are replaced, and what follows
    stays.

    Raises:
        Unsupported: the row is too short.
    """
    inputs, length = subject.inputs, subject.inputs.length
    if length < LEAST:
        raise Unsupported(f"a row of {length} tokens has no room for a hole")
    start, stop = length // 3, length // 3 + max(1, length // 6)
    mask = Mask2D(((1,) * start + (0,) * (stop - start) + (1,) * (length - stop),))
    usual, changed = (
        ForwardSpec((row,), mask=mask)
        for row in (inputs.row, inputs.other(inputs.row, start, stop, salt=41))
    )
    got_BTV, want_BTV = (subject.logits(each)[:, stop:] for each in (changed, usual))
    name, note = (
        "a hole in the mask",
        f"the mask hides positions {start}..{stop - 1}, where other tokens stand now",
    )
    return subject.compare(name, got_BTV, want_BTV, offset=stop, note=note, spec=(changed, usual))


def other_dtype(subject: Subject, batch: Padded, name: str, dtype: str) -> Measurement:
    """One case: the left-padded batch under the same mask in another dtype, against the mask as a
    tokenizer returns it.
    """
    usual = batch.spec("left", salt=1, explicit=bool(subject.can.takes_positions))
    cast = replace(usual, mask=Mask2D(batch.mask("left").rows, dtype=dtype))
    got_BTV, want_BTV = subject.logits(cast), subject.logits(usual)
    cases = []
    for row, real in enumerate(batch.real("left")):
        pair = (got_BTV[row : row + 1, real], want_BTV[row : row + 1, real])
        cases.append(
            subject.compare(
                name, *pair, offset=real.start, note="against int64", spec=(cast, usual)
            )
        )
    return merged(name, cases)


def padding_id_as_text(subject: Subject) -> Measurement:
    """One case: a row that holds the padding id as text means without a mask what it means with one
    of ones.

    Raises:
        Unsupported: the config names no padding id.
    """
    pad, length = own_pad_id(subject), subject.inputs.length
    if pad is None:
        raise Unsupported("the config names no padding id")
    tokens = (
        tuple(
            pad if at in (length // 3, length // 2) else token
            for at, token in enumerate(subject.inputs.row)
        ),
    )
    spec = ForwardSpec(tokens), ForwardSpec(tokens, mask=all_ones(tokens))
    note = f"without a mask the model makes one from token {pad}, also where that is text (an end token, for instance)"
    got_BTV, want_BTV = map(subject.logits, spec)
    return subject.compare(
        "the padding id as text", got_BTV, want_BTV, broken=Verdict.WARN, note=note, spec=spec
    )
