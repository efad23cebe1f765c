"""What decoding schemes do to a cache between calls: crop, reorder, select, repeat and copy it.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attncheck.probing import (
    Cause,
    Comparison,
    ForwardSpec,
    Measurement,
    Row,
    Subject,
    Tokens,
    cache_kinds,
    encoder_padding,
    max_abs_diff,
    merged,
    reference_forward,
    rollback_cache,
    unnamed,
)
from attncheck_probes.cache_kinds.contents import with_contents
from attncheck_probes.cache_kinds.filling import continued, fed, filled, forked, wanted

ROLLED_BACK = 3


def rolled_back(subject: Subject, name: str, kind: str = "") -> Measurement:
    """Twice, wrong candidates are fed after the prefix and cropped, and then real tokens follow: on
    a cache of a kind, otherwise on the one that the model makes. The first ones come together, the
    others one by one, as a model that drafts feeds them.
    """
    subject.can.steps.require()
    if kind:
        subject.can.library_cache.require()
    inputs, half = subject.inputs, subject.inputs.length // 2
    _, cache = fed(subject, rollback_cache(subject, kind), (inputs.row[:half],), prefill=True)
    start, parts = half, []
    for stop in (half + 1, inputs.length):
        rejected = inputs.fresh(ROLLED_BACK, salt=21)
        for candidates in (rejected,) if start == half else ((each,) for each in rejected):
            _, cache = fed(subject, cache, (candidates,))
        cache_kinds.crop(cache, ROLLED_BACK)
        logits_BTV, cache = fed(subject, cache, (inputs.row[start:stop],))
        parts.append(logits_BTV)
        start = stop
    got_BTV, want_BTV = torch.cat(parts, 1), wanted(subject, inputs.tokens, half)
    note = f"{ROLLED_BACK} tokens cropped, twice, on {type(cache).__name__}"
    case = subject.compare(name, got_BTV, want_BTV, offset=half, note=note)
    if not case.beyond or unnamed():
        return case
    case = _named(subject, case, got_BTV, half)
    _, right = fed(subject, rollback_cache(subject, kind), (inputs.row[:half],), prefill=True)
    _, after = fed(subject, rollback_cache(subject, kind), (inputs.row[:half],), prefill=True)
    _, after = fed(subject, after, (inputs.fresh(ROLLED_BACK, salt=21),))
    cache_kinds.crop(after, ROLLED_BACK)
    return with_contents(subject, case, "crop", after, right, half)


def _named(subject: Subject, case: Comparison, got_BTV: Tensor, half: int) -> Comparison:
    """The case with the fault that reproduces it: a crop that leaves some of the rejected tokens in
    the cache.
    """
    row, rejected = subject.inputs.row, subject.inputs.fresh(ROLLED_BACK, salt=21)
    for left in range(1, ROLLED_BACK + 1):
        kept = rejected[:left]
        tokens = (*row[:half], *kept, row[half], *kept, *row[half + 1 :])
        whole_BTV = subject.logits(ForwardSpec((tokens,)))
        first, rest = half + left, half + 2 * left + 1
        predicted_BTV = torch.cat([whole_BTV[:, first : first + 1], whole_BTV[:, rest:]], 1)
        residual = max_abs_diff(predicted_BTV, got_BTV)
        if residual <= subject.budget.value:
            return replace(case, cause=Cause("cache-crop", residual))
    return case


def rows_moved(subject: Subject, name: str, how: str, index: Row, kind: str = "") -> Measurement:
    """Rows of one cache moved by the method that beam search calls; each continues as the row that
    it has become.
    """
    half, length = subject.inputs.length // 2, subject.inputs.length
    rows = (subject.inputs.row, subject.inputs.other(subject.inputs.row, salt=22))
    if kind:
        subject.can.library_cache.require()
    prefix, moved = tuple(row[:half] for row in rows), tuple(rows[i] for i in index)
    want_BTV, used = wanted(subject, moved, half), cache_kinds.operation(how, subject.model)

    def with_cache(cache: Any) -> Comparison:
        cache = cache_kinds.rearrange(cache, how, index, subject.model)
        got_BTV = continued(subject, cache, tuple(row[half:] for row in moved))
        return subject.compare(name, got_BTV, want_BTV, offset=half, note=f"`{used}`")

    if kind:
        given = cache_kinds.new_cache(
            kind, subject.model, rows=len(rows), length=length, dtype=subject.dtype
        )
        case = with_cache(filled(subject, prefix, given))
    else:
        case = with_cache(forked(subject, prefix))
        case = with_cache(filled(subject, prefix)) if case.beyond else case  # no copy is to blame
    if not case.beyond or unnamed():
        return case
    if used != how:  # the model's own method, whatever the cache
        return replace(case, cause=Cause("cache-reorder", module=type(subject.model).__name__))
    # on a dynamic cache the same operation is a case of its own
    case = replace(case, cause=Cause("static-reorder")) if kind else case
    return case if kind else _rows_held(subject, case, how, index, prefix)


def _rows_held(
    subject: Subject, case: Comparison, how: str, index: Row, prefix: Tokens
) -> Comparison:
    """The case with what the cache of the model's own kind holds after the operation."""
    after, right = filled(subject, prefix), filled(subject, tuple(prefix[i] for i in index))
    after = cache_kinds.rearrange(after, how, index, subject.model)
    return with_contents(subject, case, how, after, right, len(prefix[0]))


def emptied(subject: Subject, name: str) -> Measurement:
    """Another conversation, with another input of the encoder if there is one; then the cache is
    reset and holds the main row.
    """
    inputs, half = subject.inputs, subject.inputs.length // 2
    before, other = (inputs.fresh(half, salt=25),), encoder_padding.another_input(subject)
    with torch.no_grad():
        cache = subject.passes.call(before, use_cache=True, extra=other).cache
    cache_kinds.empty(cache)
    prefill_BTV, cache = fed(subject, cache, (inputs.row[:half],), prefill=True)
    got_BTV = torch.cat([prefill_BTV, continued(subject, cache, (inputs.row[half:],))], 1)
    want_BTV = subject.logits(reference_forward(subject, inputs.row, half))
    case = subject.compare(name, got_BTV, want_BTV, note=f"{half} other tokens before the reset")
    if not case.beyond or unnamed():
        return case
    return with_contents(
        subject, case, "reset", cache, filled(subject, (inputs.row,)), len(inputs.row)
    )


def prefix_shared(subject: Subject, name: str) -> Measurement:
    """One prefix filled once. A copy of its cache continues with a text of its own, and then the
    original with the main row.
    """
    half, row = subject.inputs.length // 2, subject.inputs.row
    shared = filled(subject, (row[:half],))
    cases = []
    for salt, cache in (23, cache_kinds.copied(shared)), (0, shared):
        whole = subject.inputs.other(row, half, salt=salt) if salt else row
        got_BTV = continued(subject, cache, (whole[half:],))
        want_BTV = wanted(subject, (whole,), half)
        cases.append(subject.compare(name, got_BTV, want_BTV, offset=half))
    return merged(name, cases)


def unstored(subject: Subject, name: str) -> Measurement:
    """Tokens on a filled cache with `use_cache=False`: the model need not store them, but must read
    the cache.
    """
    row, half = subject.inputs.row, subject.inputs.length // 2
    stop = len(row) if subject.can.chunks_agree else half + 1
    cache = forked(subject, (row[:half],))
    with torch.no_grad():
        got_BTV = subject.passes.call((row[half:stop],), cache=cache, use_cache=False).logits_BTV
    want_BTV = wanted(subject, (row,), half)[:, : stop - half]
    note = f"{half} tokens on the cache, {stop - half} fed"
    return subject.compare(name, got_BTV, want_BTV, offset=half, note=note)
