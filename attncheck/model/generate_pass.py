"""generate() as a pass: the forwards that it runs over what it wrote, so that its logits can be
held against predictions.

Axes: B batch, T positions, N generated tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attncheck.core.finding import Comparison, Rerun
from attncheck.model.forward_spec import ForwardSpec, Mask2D
from attncheck.model.generation import Generated, greedy, kept_logits, padded, run
from attncheck.model.inputs import Row, Tokens
from attncheck.model.padding import pad_id
from attncheck.model.provenance import Provenance
from attncheck.model.subject import Subject

PIECES = "prefill_chunk_size"
STATIC = {"cache_implementation": "static"}
GENERATE = "generate()"
KEPT = "`logits_to_keep`"


def written(
    subject: Subject,
    rows: Tokens,
    answers: Tokens,
    padding: int = 0,
    options: Mapping[str, Any] | None = None,
) -> ForwardSpec:
    """The forwards of a greedy generate() from `rows`, left-padded to one length and `padding`
    more, as they ought to be.

    The last token of an answer is never fed. Real tokens count from 0, where positions can be given
    at all.
    """
    options = options or {}
    prompt, new = max(map(len, rows)) + padding, len(answers[0]) - 1
    lost = [prompt - len(row) for row in rows]
    filler = (pad_id(subject),)
    tokens = tuple(
        filler * gap + row + answer[:-1]
        for gap, row, answer in zip(lost, rows, answers, strict=True)
    )
    length = prompt + new
    counted = any(lost) and subject.can.takes_positions
    return ForwardSpec(
        tokens,
        chunks=_chunks(prompt, new, options),
        positions=tuple((0,) * gap + tuple(range(length - gap)) for gap in lost)
        if counted
        else None,
        mask=Mask2D(tuple((0,) * gap + (1,) * (length - gap) for gap in lost))
        if subject.can.mask_2d
        else None,
        cache_kind="static" if STATIC.items() <= options.items() else "",
    )


def _chunks(prompt: int, new: int, options: Mapping[str, Any]) -> tuple[int, ...]:
    if options.get("use_cache") is False:
        return ()
    size = options.get(PIECES, prompt)
    rest = prompt % size
    return (*((size,) * (prompt // size)), *((rest,) if rest else ()), *((1,) * new))


def with_generate(
    case: Comparison,
    spec: tuple[ForwardSpec, ForwardSpec],
    new: int,
    again: Callable[[Subject], Tensor],
    handed: tuple[Row | None, ...] = (),
) -> Comparison:
    """The case of a generate() with what a diagnosis needs: `spec` (got, want), the last `new`
    columns of got kept.
    """
    length = spec[0].length
    return replace(
        case,
        rerun=Rerun(*spec, Provenance(GENERATE, again, tuple(range(length - new, length)), handed)),
    )


def with_batch(
    subject: Subject, case: Comparison, rows: Tokens, answers: Tokens, options: Mapping[str, Any]
) -> Comparison:
    """`with_generate` for a left-padded batch, whose case is the one of its worst row."""
    new, usual = len(answers[0]), ForwardSpec(((*rows[0], *answers[0]),))

    def again(subject: Subject) -> Tensor:
        made = run(subject, *padded(subject, rows, max(map(len, rows))), new, **options)
        return torch.stack(made.logits, 1)

    return with_generate(
        case, (written(subject, rows, answers, options=options), usual), new, again
    )


def with_kept(subject: Subject, case: Comparison, keep: int) -> Comparison:
    """The case of `logits_to_keep` on the main input."""
    usual = ForwardSpec(subject.inputs.tokens)

    def again(subject: Subject) -> Tensor:
        return kept_logits(subject, usual.tokens, keep)

    made = Provenance(KEPT, again, tuple(range(usual.length - keep, usual.length)))
    return replace(case, rerun=Rerun(usual, usual, made))


def with_greedy(
    subject: Subject, case: Comparison, made: Generated, padding: int = 0, **options: Any
) -> Comparison:
    """`with_generate` for one prompt: `made` is what `greedy` returned for it."""
    prompt, new = made.prompt[padding:], len(made.tokens)
    spec = (
        written(subject, (prompt,), (made.tokens,), padding, options),
        ForwardSpec(((*prompt, *made.tokens),)),
    )

    def again(subject: Subject) -> Tensor:
        return greedy(subject, prompt, new, padding, **options).logits_BNV

    return with_generate(case, spec, new, again, made.positions)
