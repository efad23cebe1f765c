"""The scores of beam search: they are log-probabilities of the sequences that it returns, and one
forward gives those too.

Axes: B batch, T positions, N generated tokens, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch

from attncheck.probing import (
    Comparison,
    Divergence,
    Row,
    Subject,
    Tokens,
    Unsupported,
    max_abs,
    merged,
)
from attncheck_probes.generate.answers import RowAnswers, answers, wanted

NAME = "beam search scores"


def beam_scores(
    subject: Subject,
    prompt: Row,
    padding: int,
    new_tokens: int,
    name: str = NAME,
    **options: Any,
) -> Comparison:
    """The scores of two beams per row, for a batch whose second row is `padding` tokens shorter and
    padded on the left.

    One row where the model reads no mask, or where its plain forward already errs on the padded
    batch, which `padding` reports.
    """
    rows = (prompt, prompt[padding:])
    if subject.can.mask_2d:
        case, found = _scored(subject, name, rows, new_tokens, options)
        if not case.beyond or found.padding_holds(subject):
            return case
    return _scored(subject, name, rows[:1], new_tokens, options)[0]


def _scored(
    subject: Subject, name: str, rows: Tokens, new_tokens: int, options: dict[str, Any]
) -> tuple[Comparison, RowAnswers]:
    found = answers(subject, rows, new_tokens, num_beams=2, output_scores=True, **options)
    scores = getattr(found.output, "sequences_scores", None)
    if scores is None:
        raise Unsupported("generate() returns no scores of its beams")
    each = zip(rows, found.tokens, scores.tolist(), strict=True)
    cases = [_against(subject, number, *row) for number, row in enumerate(each)]
    return merged(name, cases), found


def _against(subject: Subject, number: int, row: Row, answer: Row, score: float) -> Comparison:
    want_NV = wanted(subject, row, answer)[0].double()
    mean = float(want_NV.log_softmax(-1)[range(len(answer)), answer].mean())
    return Comparison(
        NAME,
        Divergence(max_abs=abs(score - mean), positions=len(answer), scale=max_abs(want_NV)),
        2 * subject.budget.value + torch.finfo(torch.float32).eps * abs(mean),
        f"twice the budget of the logits ({subject.budget.source}) and one float32 rounding",
        unit="scores",
        note=f"row {number}",
    )
