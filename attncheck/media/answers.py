"""generate() behind pictures and sounds, against one forward over what it wrote.

Axes: B batch, T positions, N generated tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attncheck.core.measurement import Cause, Comparison, Measurement
from attncheck.core.merging import merged
from attncheck.media.cases import ONE, OTHER, TYPES_IGNORED, Measured, asked
from attncheck.media.rows import MediaRow, MediaRows
from attncheck.model import generation
from attncheck.model.inputs import Tokens
from attncheck.model.media import TOKEN_TYPES
from attncheck.model.subject import Subject

Options = dict[str, Any]


def answers(subject: Subject, new_tokens: int) -> Iterator[Measurement]:
    """generate() from prompts with an item, alone and in a padded batch."""
    padded = partial(_answered, seeds=((OTHER,), (ONE,)), shorter=1, new=new_tokens)
    alone = partial(_answered, seeds=((ONE,),), shorter=None, new=new_tokens)
    cases: dict[str, Measured] = {
        "answer to a {}": alone,
        "answer to a {}, cache off": partial(alone, use_cache=False),
        "answer to a {}, static cache": partial(alone, cache_implementation="static"),
        "left-padded batch with a {} each": padded,
        "beam search behind a {}": _beams,
        "text after an answer to a {}": partial(_text_after, new=new_tokens),
    }
    return asked(subject, cases)


def _answered(
    rows: MediaRows,
    name: str,
    seeds: tuple[tuple[int, ...], ...],
    shorter: int | None,
    new: int,
    **options: Any,
) -> Comparison:
    """The logits behind each row's answer against one forward over prompt and answer."""
    batch = rows.batch(seeds, shorter)
    passed = generation.Passed()
    logits_BNV, written = _generated(rows, batch, new, options, passed)
    cases = []
    for number, (row, answer) in enumerate(zip(batch, written, strict=True)):
        whole = rows.spec(MediaRow((*row.ids, *answer), row.seeds), prompt=len(row.ids))
        want_BNV = rows.subject.logits(whole)[:, len(row.ids) - 1 : -1]
        got_BNV, offset = logits_BNV[number : number + 1], len(row.ids) - 1
        case = rows.subject.compare(name, got_BNV, want_BNV, offset=offset, budget=rows.budget)
        cases.append(case)
    case = merged(name, cases)
    return _lost(rows, passed.explained(case), passed) if case.beyond else case


def _beams(rows: MediaRows, name: str) -> Comparison:
    """The logits from which each beam of a prompt draws its first token, against one forward."""
    row, passed = rows.row(ONE), generation.Passed()
    beams: Options = {"num_beams": 2, "num_return_sequences": 2}
    logits_BNV, _ = _generated(rows, [row], 1, beams, passed)
    want_BNV = rows.subject.logits(rows.spec(row))[:, -1:].expand_as(logits_BNV)
    case = rows.subject.compare(
        name, logits_BNV, want_BNV, offset=len(row.ids) - 1, budget=rows.budget
    )
    return passed.explained(case)


def _lost(rows: MediaRows, case: Comparison, passed: generation.Passed) -> Comparison:
    """The case with the token types that generate() does not pass on to the first forward."""
    names = [each for each in TOKEN_TYPES if each in rows.medium.names - passed.first]
    if not names:
        return case
    home = f"{type(rows.subject.model).__name__}.prepare_inputs_for_generation"
    text = f"generate() does not pass {', '.join(f'`{each}`' for each in names)} on to forward"
    note = f"{case.note}; {text}" if case.note else text
    return replace(case, note=note, cause=Cause(TYPES_IGNORED, module=home))


def _text_after(rows: MediaRows, name: str, new: int) -> Comparison:
    """An answer to text alone, before and after an answer to an item."""
    text, item = MediaRow(rows.text), rows.row(ONE)
    first_BNV, written = _generated(rows, [text], new, {})
    _generated(rows, [item], new, {})
    again_BNV, after = _generated(rows, [text], new, {})
    pairs = enumerate(zip(written[0], after[0], strict=True), start=1)
    kept = next((number for number, (one, other) in pairs if one != other), new)
    return rows.subject.compare(
        name, again_BNV[:, :kept], first_BNV[:, :kept], offset=len(text.ids), budget=rows.budget
    )


def _generated(
    rows: MediaRows,
    batch: list[MediaRow],
    new: int,
    options: Options,
    passed: generation.Passed | None = None,
) -> tuple[Tensor, Tokens]:
    """logits_BNV behind the answers, and these. Ids that stand for items are never chosen."""
    subject, medium = rows.subject, rows.medium
    spec = rows.spec(*batch)
    ids_BT = subject.passes.ids(spec.tokens)
    mask_BT = torch.ones_like(ids_BT)
    for number, row in enumerate(batch):
        mask_BT[number, : ids_BT.shape[1] - len(row.ids)] = 0
    given = {} if spec.media is None else medium.arguments(ids_BT, spec.media, subject.dtype)
    never: Options = {"suppress_tokens": list(dict.fromkeys(medium.span))} if medium.span else {}
    options = {**never, **options}
    output = generation.run(subject, ids_BT, mask_BT, new, passed, given=given, **options)
    written = output.sequences[:, -new:]
    tokens = tuple(tuple(map(int, row)) for row in written)
    return torch.stack(output.logits, 1), tokens
