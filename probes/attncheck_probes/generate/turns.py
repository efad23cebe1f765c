"""Batches, second turns, rows that end before the others, holes in the mask, and padded encoder
inputs.

Axes: B batch, T positions, N generated tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from attncheck.probing import (
    PIECES,
    Cause,
    Comparison,
    ForwardSpec,
    Mask2D,
    Measurement,
    Row,
    Subject,
    Tokens,
    Unsupported,
    Verdict,
    cache_of,
    cached_length,
    encoder_padding,
    generation,
    padded_ids,
    with_batch,
    without_constants,
)
from attncheck_probes.generate.answers import answers, compare, of_generate, taken

SALTS = (53, 59, 67)
HOLE = "a hole in the mask"


def batch(
    subject: Subject, name: str, rows: Tokens, new: int, options: Mapping[str, Any]
) -> Measurement:
    """A left-padded batch, each row against one forward over its own prompt and answer."""
    subject.can.mask_2d.require()
    if PIECES in options:
        subject.can.cache.require()
    found = answers(subject, rows, new, **options)
    case = found.compared(subject, name)
    case = found.passed.explained(with_batch(subject, case, rows, found.tokens, options))
    if case.beyond and not found.padding_holds(subject):
        case = found.compared_padded(subject, name)
    return of_generate(subject, case, options)


def continued(subject: Subject, name: str, rows: Tokens, new: int) -> Measurement:
    """A second generate() on the cache that the first one returned."""
    if len(rows) > 1:
        subject.can.mask_2d.require()
    first = taken(subject, rows, new)
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
    rows, (ending, end) = _ends(subject, rows, new)
    found = answers(subject, rows, new, eos_token_id=end, min_new_tokens=None)
    other = 1 - ending
    pair = found.rows[other], found.tokens[other], found.logits_BNV[other : other + 1]
    case = compare(subject, name, *pair)
    case = replace(case, note=f"row {ending} ends before row {other}")
    if not case.beyond:
        return case
    if not found.padding_holds(subject):
        return found.compared_padded(subject, name, slice(other, other + 1))
    return of_generate(subject, replace(case, cause=Cause("finished-row-moves")), {})


def _ends(subject: Subject, rows: Tokens, new: int) -> tuple[Tokens, tuple[int, int]]:
    """Rows, and which of them generates which token alone, before its last one; a second row that
    answers as the first one does is replaced.
    """
    for salt in SALTS:
        pair = (rows[0], subject.inputs.other(rows[1], salt=salt))
        usual = answers(subject, pair, new).tokens
        for row, answer in enumerate(usual):
            for token in answer[:-1]:
                if token not in usual[1 - row]:
                    return pair, (row, token)
    raise Unsupported("both rows generate the same tokens: none of them can end alone")


def padded_encoder(subject: Subject, name: str, prompt: Row, padding: int, new: int) -> Measurement:
    """An answer to a padded encoder input, and the module that reads the padding if one does."""
    given = generation.padded_encoder(subject, padding)
    case = answers(subject, (prompt,), new, given=given).compared(subject, name)
    module = encoder_padding.reader_of_padding(subject, given) if case.beyond else ""
    if not module:
        return case
    note = f"{module}: {encoder_padding.READS}"
    return replace(case, note=note, cause=Cause("padding-visible", module=module))


def hole(subject: Subject, prompt: Row, new: int) -> Measurement:
    """An answer to a prompt with hidden tokens in its middle, against one forward under the same
    mask whose positions count what is not hidden, as generate() counts padding.
    """
    subject.can.mask_2d.require()
    start, count = len(prompt) // 2, max(1, len(prompt) // 6)
    if start < count + 1:
        raise Unsupported(f"a prompt of {len(prompt)} tokens has no room for a hole")
    ids_BT, mask_BT = padded_ids(subject, (prompt,), len(prompt))
    mask_BT[:, start : start + count] = 0
    passed = generation.Passed()
    found = generation.run(subject, ids_BT, mask_BT, new, passed)
    answer = generation.answer_of(found, len(prompt))
    spec = ForwardSpec(((*prompt, *answer),), mask=Mask2D(((*map(int, mask_BT[0]), *(1,) * new),)))
    counting = spec if not subject.can.takes_positions else _counting(subject, spec)
    got_BNV = without_constants(torch.stack(found.logits, 1))
    note = f"the mask hides positions {start}..{start + count - 1}"

    def against(spec: ForwardSpec) -> Comparison:
        want_BNV = subject.logits(spec)[:, len(prompt) - 1 : -1]
        case = subject.compare(HOLE, got_BNV, want_BNV, offset=len(prompt) - 1, note=note)
        return passed.explained(case)

    case = against(counting)
    if not case.beyond or counting is spec:
        return of_generate(subject, case, {})
    by_slot = against(spec)
    if by_slot.beyond:
        return of_generate(subject, case, {})
    if all(row is None for row in passed.positions):
        return by_slot  # generate() passes none, and forward counts as it does everywhere
    home = f"{type(subject.model).__name__}.prepare_inputs_for_generation"
    cause = Cause("position-ignores-padding", by_slot.max_abs, home)
    return replace(case, note=f"{note}; positions count them", cause=cause, broken=Verdict.WARN)


def _counting(subject: Subject, spec: ForwardSpec) -> ForwardSpec:
    """The same with positions that count the tokens that its mask shows."""
    assert isinstance(spec.mask, Mask2D)
    shown_BT, first = torch.tensor(spec.mask.rows), subject.can.first_position
    positions_BT = (shown_BT.cumsum(-1) - 1).clamp_min(0) + first
    return replace(spec, positions=tuple(tuple(map(int, row)) for row in positions_BT))
