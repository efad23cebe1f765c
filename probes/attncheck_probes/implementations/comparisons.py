"""What one attention implementation is compared with another in: five forwards, and a boolean mask.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from attncheck.probing import (
    ForwardSpec,
    Mask4D,
    Measurement,
    Subject,
    Verdict,
    blocks,
    compare_rows,
    finitely_beyond,
    following,
    left_padded,
    pad_rows,
    switched_gradient,
)

Compared = Callable[[Subject, str, str], Measurement]


def _same(
    subject: Subject, name: str, attn: str, forward: Callable[[Subject], ForwardSpec]
) -> Measurement:
    usual = forward(subject)
    return subject.compare_forwards(name, replace(usual, attn=attn), usual)


def _plain(subject: Subject) -> ForwardSpec:
    return ForwardSpec(subject.inputs.tokens)


def _decoded(subject: Subject) -> ForwardSpec:
    subject.can.cache.require()
    length = subject.inputs.length
    third, rest = length // 3, length - length // 3 - 3
    # where the row is long enough a schedule of `decode-paths`, so that one side has run
    chunks = (third, 1, 2, rest) if rest > 0 else (length - 2, 1, 1)
    return ForwardSpec(subject.inputs.tokens, chunks=chunks)


def _blocked(subject: Subject) -> ForwardSpec:
    subject.can.mask_4d.require()
    half = subject.inputs.length // 2
    return ForwardSpec(subject.inputs.tokens, mask=blocks((half, subject.inputs.length - half)))


def _padded(subject: Subject, name: str, attn: str) -> Measurement:
    """Real tokens only: implementations may treat the padding itself as they like."""
    subject.can.mask_2d.require()
    batch = pad_rows(subject)
    usual = left_padded(subject, batch)
    case = compare_rows(subject, batch, name, replace(usual, attn=attn), usual)
    other_padding = replace(usual, tokens=batch.tokens("left", salt=2))
    if case.beyond and _last_logits_move(subject, usual, other_padding):
        why = "tokens under the padding change the logits in every implementation"
        return following(case, "padding", why)
    return case


def _last_logits_move(subject: Subject, usual: ForwardSpec, changed: ForwardSpec) -> bool:
    changed_BV, usual_BV = (subject.logits(each)[:, -1] for each in (changed, usual))
    return finitely_beyond(changed_BV, usual_BV, subject.budget.value)


COMPARED: dict[str, Compared] = {
    "plain row": partial(_same, forward=_plain),
    "left-padded batch": _padded,
    "4D mask": partial(_same, forward=_blocked),
    "decoded on a cache": partial(_same, forward=_decoded),
    "gradient": switched_gradient,
}


def boolean_mask(subject: Subject, name: str, attn: str) -> Measurement:
    """The same mask as booleans and as numbers added to the scores, in one implementation."""
    usual = replace(_blocked(subject), attn=attn)
    assert isinstance(usual.mask, Mask4D)
    boolean = replace(usual, mask=Mask4D(usual.mask.segments, boolean=True))
    note = f"forward(attention_mask=<4D booleans>) under {attn}: pass a float mask"
    return subject.compare_forwards(name, boolean, usual, broken=Verdict.WARN, note=note)
