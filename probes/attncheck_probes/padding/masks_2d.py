"""2D masks beyond padding at one end: an empty row, a hole, another dtype, and no mask where the
padding id is part of the text.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from dataclasses import replace

from attncheck.probing import (
    AtMost,
    CallFailed,
    ForwardSpec,
    Mask2D,
    Measurement,
    Padded,
    Subject,
    Unsupported,
    Verdict,
    all_ones,
    compare_rows,
    holes,
    left_padded,
    own_pad_id,
)

DTYPES = ("bool", "int32", "float32")
"""What a mask may be instead of the int64 that tokenizers return."""
LEAST = 6
"""A shorter row has no room for a hole between text and text."""


def empty_row(subject: Subject, batch: Padded, name: str) -> Measurement:
    """A second row that is all padding must not change the first, nor turn into NaN itself."""
    tokens = (subject.inputs.row, (batch.pad,) * batch.length)
    spec = ForwardSpec(tokens, mask=Mask2D(((1,) * batch.length, (0,) * batch.length)))
    alone = ForwardSpec(subject.inputs.tokens)
    case = subject.compare_forwards(name, spec, alone, row=0, alone=True)
    divergence = replace(case.divergence, nonfinite=holes(subject.logits(spec)))
    return replace(case, divergence=divergence)


def hole(subject: Subject, batch: Padded, name: str) -> Measurement:
    """Tokens that the mask hides in the middle of a row are replaced, and what follows stays."""
    inputs, length = subject.inputs, batch.length
    if length < LEAST:
        raise Unsupported(f"a row of {length} tokens has no room for a hole")
    start, stop = length // 3, length // 3 + max(1, length // 6)
    mask = Mask2D(((1,) * start + (0,) * (stop - start) + (1,) * (length - stop),))
    usual = ForwardSpec(inputs.tokens, mask=mask)
    changed = replace(usual, tokens=(inputs.other(inputs.row, start, stop, salt=41),))
    note = f"the mask hides positions {start}..{stop - 1}, whose tokens were replaced"
    return subject.compare_forwards(name, changed, usual, at=slice(stop, None), note=note)


def other_dtype(subject: Subject, batch: Padded, name: str, dtype: str) -> Measurement:
    """The shortest row, padded on the left, under the same mask in another dtype, against the mask
    as a tokenizer returns it.
    """
    batch = replace(batch, rows=(min(batch.rows, key=len),))
    usual = left_padded(subject, batch)
    cast = replace(usual, mask=Mask2D(batch.mask("left").rows, dtype=dtype))
    return compare_rows(subject, batch, name, cast, usual, note="against int64")


def padding_id_as_text(subject: Subject, batch: Padded, name: str) -> Measurement:
    """A row that has the padding id as text means the same without a mask and with one of ones."""
    pad, row = own_pad_id(subject), list(subject.inputs.row)
    if pad is None:
        raise Unsupported("the config names no padding id")
    row[batch.length // 3] = row[batch.length // 2] = pad
    tokens = (tuple(row),)
    note = (
        f"without a mask the model makes one from token {pad}, even where that is text "
        "(an end token, for instance)"
    )
    bare, masked = ForwardSpec(tokens), ForwardSpec(tokens, mask=all_ones(tokens))
    return subject.compare_forwards(name, bare, masked, broken=Verdict.WARN, note=note)


def eager_in_plain_float64(subject: Subject, batch: Padded, name: str) -> Measurement:
    """A left-padded batch under eager attention in float64 as the library computes it, hidden
    float32 included. A model that raises there is run in float64 by nobody.
    """
    if not subject.precision.promoted:
        raise Unsupported("concerns float64 only")
    spec = replace(left_padded(subject, batch, attn="eager"), unpromoted=True)
    try:
        logits_BTV = subject.logits(spec)
    except CallFailed as error:
        raise Unsupported(f"concerns float64 only, where the model breaks: {error}") from error
    lost = holes(logits_BTV)
    return AtMost(
        name,
        float(lost),
        "values that are not finite",
        broken=Verdict.WARN,
        positions=logits_BTV.shape[0] * logits_BTV.shape[1],
        nonfinite=lost,
        note="left padding under eager attention in float64: this combination only",
    )
