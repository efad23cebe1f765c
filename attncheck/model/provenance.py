"""Logits that no plain forward gives: those of generate(), of `logits_to_keep`, of a call after
another one; and the forwards whose logits they should be.

Axes: B batch, T positions, N kept positions or generated tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor

from attncheck.core.measurement import Comparison, Rerun
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.generation import Generated, greedy, kept_logits, run
from attncheck.model.inputs import Row, Tokens
from attncheck.model.padding import Padded, pad_id, padded_ids
from attncheck.model.subject import Subject
from attncheck.numerics.constants import without_constants

AFTER = "after another call"
GENERATE = "generate()"
KEPT = "`logits_to_keep`"
PIECES = "prefill_chunk_size"
STATIC = {"cache_implementation": "static"}


@final
@dataclass(frozen=True)
class Provenance:
    """How the first logits of a case were really made, beside the forward whose logits they should
    be.

    `again` makes them once more, logits_BNV; `columns` are the N positions of the forward that they
    belong to, or all. `passed` are the positions that generate() passed to each of its forwards.
    """

    how: str
    again: Callable[[Subject], Tensor]
    columns: tuple[int, ...] | None = None
    passed: tuple[Row | None, ...] = ()

    def explicit_positions(self, length: int) -> Row | None:
        """The position that was passed for each of `length` tokens of one row; None where some had
        none.
        """
        given = [row for row in self.passed if row is not None]
        flat = tuple(position for row in given for position in row)
        if len(flat) == length:
            return flat
        return given[-1] if given and len(given[-1]) == length else None


def written(
    subject: Subject,
    rows: Tokens,
    answers: Tokens,
    padding: int = 0,
    options: Mapping[str, Any] | None = None,
) -> ForwardSpec:
    """The forwards of a greedy generate() from `rows`, left-padded to one length and `padding`
    more, as they should be.

    The last token of an answer is never fed. Real tokens count from 0, where the model takes
    positions at all.
    """
    options = options or {}
    prompt, new = max(map(len, rows)) + padding, len(answers[0]) - 1
    fed = tuple((*row, *answer[:-1]) for row, answer in zip(rows, answers, strict=True))
    batch = Padded(rows=fed, length=prompt + new, pad=pad_id(subject), inputs=subject.inputs)
    shorter = any(map(batch.padding, range(len(fed))))
    return ForwardSpec(
        batch.tokens("left"),
        chunks=_chunks(prompt, new, options),
        positions=batch.positions("left") if shorter and subject.can.takes_positions else None,
        mask=batch.mask("left") if subject.can.mask_2d else None,
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
    passed: tuple[Row | None, ...] = (),
) -> Comparison:
    """The case of a generate() with what a diagnosis needs: `spec` (got, want), the last `new`
    columns of got kept.
    """
    length = spec[0].length
    made = Provenance(GENERATE, again, tuple(range(length - new, length)), passed)
    return replace(case, rerun=Rerun(*spec, made))


def with_batch(
    subject: Subject, case: Comparison, rows: Tokens, answers: Tokens, options: Mapping[str, Any]
) -> Comparison:
    """`with_generate` for a left-padded batch, whose case is that of its worst row."""
    new, usual = len(answers[0]), ForwardSpec(((*rows[0], *answers[0]),))

    def again(subject: Subject) -> Tensor:
        batch = padded_ids(subject, rows, max(map(len, rows)))
        return without_constants(torch.stack(run(subject, *batch, new, **options).logits, 1))

    spec = written(subject, rows, answers, options=options)
    return with_generate(case, (spec, usual), new, again)


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

    return with_generate(case, spec, new, again, tuple(made.passed.positions))
