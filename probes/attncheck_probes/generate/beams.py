"""The scores of beam search: they are log-probabilities of the sequences that it returns, and one
forward gives those too.

Axes: B batch, T positions, N generated tokens, V vocabulary.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from attncheck.probing import (
    Cause,
    Comparison,
    Divergence,
    Row,
    Subject,
    Tokens,
    Unsupported,
    encoder_padding,
    max_abs,
    merged,
)
from attncheck_probes.generate.answers import RowAnswers, answers, wanted

NAME, TWO_ENCODED = "beam search scores", "beam search scores, two encoder inputs"
BEAMS = 2
TRIES = 3
SEARCH: dict[str, Any] = {
    "num_beams": BEAMS,
    "num_return_sequences": BEAMS,
    "output_scores": True,
}


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


def beside_another_encoder(subject: Subject, prompt: Row, new_tokens: int, name: str) -> Comparison:
    """The scores of beams over the usual encoder input, in either row of a batch whose other row
    has another one: as if it were alone.
    """
    cases = []
    for number in range(2):
        given = encoder_padding.beside_another_encoder(subject, number)
        found = answers(subject, (prompt, prompt), new_tokens, given=given, **SEARCH)
        scores = getattr(found.output, "sequences_scores", None)
        if scores is None:
            raise Unsupported("generate() returns no scores of its beams")
        beams = range(BEAMS * number, BEAMS * (number + 1))
        each = [_against(subject, number, prompt, found.tokens[n], float(scores[n])) for n in beams]
        cases.append(merged(name, each))
    case = merged(name, cases)
    if not case.beyond:
        return case
    note = f"{case.note}: beside a row with another encoder input it has other scores"
    expand = f"{type(subject.model).__name__}._expand_inputs_for_generation"
    return replace(case, note=note, cause=Cause("rows-mixed", module=expand))


def _scored(
    subject: Subject, name: str, rows: Tokens, new_tokens: int, options: dict[str, Any]
) -> tuple[Comparison, RowAnswers]:
    """The case of each row's beam that changed places most often: one that stays where it began
    would have the right score if the cache did not follow.
    """
    for salt in range(TRIES):
        tried = rows if salt == 0 else tuple(subject.inputs.other(row, salt=salt) for row in rows)
        found = answers(subject, tried, new_tokens, **SEARCH, **options)
        if _moved(found.output):
            break
    scores = getattr(found.output, "sequences_scores", None)
    if scores is None:
        raise Unsupported("generate() returns no scores of its beams")
    rows, kept = tried, [_most_moved(found.output, BEAMS * row) for row in range(len(rows))]
    each = [(row, found.tokens[at], float(scores[at])) for row, at in zip(rows, kept, strict=True)]
    cases = [_against(subject, number, *row) for number, row in enumerate(each)]
    case = found.passed.explained(merged(name, cases))
    return case, replace(found, tokens=tuple(found.tokens[at] for at in kept))


def _moved(output: Any) -> bool:
    """Whether a beam changed places; also where nothing says so."""
    indices = getattr(output, "beam_indices", None)
    return indices is None or bool(indices.diff(dim=-1).any())


def _most_moved(output: Any, first: int) -> int:
    """Of the sequences that a row returned, the one that changed places most often."""
    indices = getattr(output, "beam_indices", None)
    if indices is None:
        return first
    moves = [int(indices[first + n].diff().ne(0).sum()) for n in range(BEAMS)]
    return first + moves.index(max(moves))


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
