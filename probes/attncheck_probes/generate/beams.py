"""Beam search asked for its scores: they are log-probabilities of the sequences that it returns,
and one forward gives those too.

Axes: B batch, T positions, N generated tokens, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch

from attncheck.probing import (
    Comparison,
    Divergence,
    ForwardSpec,
    Row,
    Subject,
    Tokens,
    Unsupported,
    generation,
    max_abs,
    merged,
    padded_ids,
)

NAME = "beam search scores"


def beam_scores(subject: Subject, prompt: Row, padding: int, new_tokens: int) -> Comparison:
    """One case: the scores of two beams a row, for a batch whose second row is `padding` tokens
    shorter and padded on the left.

    One row where the model reads no mask, or errs in a padded forward already, which is for
    `padding`.

    Raises:
        Unsupported: generate() raises, or returns no scores.
    """
    rows = (prompt, prompt[padding:])
    if subject.can.mask_2d and subject.can.reads_mask:
        case, answers = _scored(subject, rows, new_tokens)
        if not case.beyond or _padding_holds(subject, rows, answers):
            return case
    return _scored(subject, rows[:1], new_tokens)[0]


def _padding_holds(subject: Subject, rows: Tokens, answers: list[Row]) -> bool:
    try:
        generation.require_padding(subject, rows, answers)
    except Unsupported:
        return False
    return True


def _scored(subject: Subject, rows: Tokens, new_tokens: int) -> tuple[Comparison, list[Row]]:
    options: dict[str, Any] = {"num_beams": 2, "output_scores": True}
    made = generation.run(subject, *padded_ids(subject, rows, len(rows[0])), new_tokens, **options)
    if getattr(made, "sequences_scores", None) is None:
        raise Unsupported("generate() returns no scores of its beams")
    answers = [tuple(map(int, row)) for row in made.sequences[:, -new_tokens:]]
    each = zip(rows, answers, made.sequences_scores.tolist(), strict=True)
    return merged(
        NAME, [_against(subject, number, *row) for number, row in enumerate(each)]
    ), answers


def _against(subject: Subject, number: int, row: Row, answer: Row, score: float) -> Comparison:
    want_NV = subject.logits(ForwardSpec(((*row, *answer),)))[0, len(row) - 1 : -1].double()
    mean = float(want_NV.log_softmax(-1)[range(len(answer)), answer].mean())
    return Comparison(
        NAME,
        Divergence(max_abs=abs(score - mean), positions=len(answer), scale=max_abs(want_NV)),
        2 * subject.budget.value + torch.finfo(torch.float32).eps * abs(mean),
        f"twice the budget of the logits ({subject.budget.source}) and one float32 rounding",
        unit="scores",
        note=f"row {number}",
    )
