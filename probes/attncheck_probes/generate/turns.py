"""Batches, second turns, and rows that end before the others.

Axes: B batch, N generated tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from attncheck.probing import (
    PIECES,
    Cause,
    Measurement,
    Subject,
    Tokens,
    Unsupported,
    cache_of,
    cached_length,
    with_batch,
)
from attncheck_probes.generate.answers import answers, compare, of_generate


def batch(
    subject: Subject, name: str, rows: Tokens, new: int, options: Mapping[str, Any]
) -> Measurement:
    """A left-padded batch, each row against one forward over its own prompt and answer."""
    subject.can.mask_2d.require()
    if PIECES in options:
        subject.can.cache.require()
    found = answers(subject, rows, new, **options)
    case = found.compared(subject, name)
    case = with_batch(subject, case, rows, found.tokens, options)
    if case.beyond and not found.padding_holds(subject):
        case = found.compared_padded(subject, name)
    return of_generate(subject, case, options)


def continued(subject: Subject, name: str, rows: Tokens, new: int) -> Measurement:
    """A second generate() on the cache that the first one returned."""
    if len(rows) > 1:
        subject.can.mask_2d.require()
    first = answers(subject, rows, new)
    cache, cache_name = cache_of(first.output), subject.forward_adapter.cache_name
    if not cached_length(cache) or cache_name is None:
        raise Unsupported("generate() returns no cache that counts its tokens")
    longer = tuple((*row, *answer) for row, answer in zip(rows, first.tokens, strict=True))
    found = answers(subject, longer, new, given={cache_name: cache})
    case = found.compared(subject, name)
    if case.beyond and len(rows) > 1 and not found.padding_holds(subject):
        case = found.compared_padded(subject, name)
    return of_generate(subject, case, {PIECES: 1})


def ends_early(subject: Subject, name: str, rows: Tokens, new: int) -> Measurement:
    """A batch in which one row meets the end token before the last step: the other row goes on as
    if it were alone.
    """
    subject.can.mask_2d.require()
    usual = answers(subject, rows, new).tokens
    ending, end = _ends(usual)
    found = answers(subject, rows, new, eos_token_id=end, min_new_tokens=None)
    other = 1 - ending
    pair = found.rows[other], found.tokens[other], found.logits_BNV[other : other + 1]
    case = compare(subject, name, *pair)
    if case.beyond and not found.padding_holds(subject):
        raise Unsupported("one forward of the padded batch differs as well: that is for `padding`")
    case = replace(case, note=f"row {ending} ends before row {other}")
    measured = of_generate(subject, case, {})
    return replace(measured, cause=Cause("finished-row-moves")) if case.beyond else measured


def _ends(usual: Tokens) -> tuple[int, int]:
    """A row, and a token that it alone generates, before the last one."""
    for row, answer in enumerate(usual):
        for token in answer[:-1]:
            if token not in usual[1 - row]:
                return row, token
    raise Unsupported("both rows generate the same tokens: none of them can end alone")
