"""Run generate() over padded prompts, and compare the logits behind its answers with one forward.

Axes: B batch, N generated tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor

from attncheck.probing import (
    PIECES,
    AtMost,
    Comparison,
    ForwardSpec,
    Measurement,
    Row,
    Subject,
    Tokens,
    Unsupported,
    beyond,
    following,
    generation,
    merged,
    padded_ids,
    with_kept,
    without_constants,
)

ARGMAX = "tokens are the argmax"


@final
@dataclass(frozen=True)
class RowAnswers:
    """What generate() appended to each row, logits_BNV behind that, its whole output, and what each
    of its forwards was given.
    """

    rows: Tokens
    tokens: Tokens
    logits_BNV: Tensor
    output: Any
    passed: generation.Passed = field(default_factory=generation.Passed)

    @property
    def generated(self) -> generation.Generated:
        """The same of one row."""
        (prompt,), (answer,) = self.rows, self.tokens
        return generation.Generated(answer, self.logits_BNV, self.passed, prompt)

    def compared(self, subject: Subject, name: str) -> Comparison:
        """Each row's logits against one forward over prompt and answer."""
        pairs = enumerate(zip(self.rows, self.tokens, strict=True))
        return self.passed.explained(
            merged(
                name,
                [compare(subject, name, *pair, self.logits_BNV[i : i + 1]) for i, pair in pairs],
            )
        )

    def padding_holds(self, subject: Subject) -> bool:
        """Whether one forward of the padded batch gives each row what it gives alone."""
        padded_BNV = generation.padded_answers(subject, self.rows, self.tokens)
        alone = [wanted(subject, *pair) for pair in zip(self.rows, self.tokens, strict=True)]
        return not beyond(padded_BNV, torch.cat(alone), subject.budget.value)

    def compared_padded(self, subject: Subject, name: str, rows: slice = slice(None)) -> Comparison:
        """The logits of all or some rows against one forward of the same padded batch."""
        want_BNV = generation.padded_answers(subject, self.rows, self.tokens)
        note = (
            "against one forward of the padded batch, which gives its rows other logits than alone"
        )
        got_BNV, offset = self.logits_BNV[rows], len(self.rows[0])
        return subject.compare(name, got_BNV, want_BNV[rows], offset=offset, note=note)


def answers(
    subject: Subject,
    rows: Tokens,
    new_tokens: int,
    given: dict[str, Any] | None = None,
    **options: Any,
) -> RowAnswers:
    """Generate from rows, left-padded to the length of the first; the usual call is made once."""
    if given or options:
        return _answered(subject, rows, new_tokens, given, options)
    usual = ("answers", rows, new_tokens)
    return subject.passes.once(usual, lambda: _answered(subject, rows, new_tokens, None, {}))


def taken(subject: Subject, rows: Tokens, new_tokens: int) -> RowAnswers:
    """The usual `answers` for whoever goes on with their cache: nobody gets it afterwards."""
    found = answers(subject, rows, new_tokens)
    subject.passes.found.pop((("answers", rows, new_tokens), subject.passes.injection.active), None)
    return found


def _answered(
    subject: Subject,
    rows: Tokens,
    new_tokens: int,
    given: dict[str, Any] | None,
    options: dict[str, Any],
) -> RowAnswers:
    ids_BT, mask_BT = padded_ids(subject, rows, len(rows[0]))
    passed = generation.Passed()
    output = generation.run(subject, ids_BT, mask_BT, new_tokens, passed, given=given, **options)
    tokens = tuple(tuple(map(int, row)) for row in output.sequences[:, -new_tokens:])
    logits_BNV = without_constants(torch.stack(output.logits, 1))
    return RowAnswers(rows, tokens, logits_BNV, output, passed)


def wanted(subject: Subject, prompt: Row, answer: Row) -> Tensor:
    """logits_BNV of one forward, at the positions from which the answer's tokens were drawn; of one
    over each prefix where later tokens change earlier logits.
    """
    if generation.reads_ahead(subject):
        ends = range(len(prompt), len(prompt) + len(answer))
        prefixes = [ForwardSpec(((*prompt, *answer)[:end],)) for end in ends]
        return torch.cat([subject.logits(prefix)[:, -1:] for prefix in prefixes], 1)
    return subject.logits(ForwardSpec(((*prompt, *answer),)))[:, len(prompt) - 1 : -1]


def compare(
    subject: Subject, name: str, prompt: Row, answer: Row, logits_BNV: Tensor
) -> Comparison:
    """The logits behind an answer against those of one forward over prompt and answer."""
    want_BNV = wanted(subject, prompt, answer)
    return subject.compare(name, logits_BNV, want_BNV, offset=len(prompt) - 1)


def of_generate(subject: Subject, case: Measurement, options: Mapping[str, Any]) -> Measurement:
    """The case, which says where the model's own cache differs outside generate() as well."""
    can = subject.can.chunks_agree if PIECES in options else subject.can.steps_agree
    if not case.beyond or not options.get("use_cache", True) or can:
        return case
    return following(case, "decode-paths", can.reason)


def argmax(subject: Subject, prompt: Row, new: int) -> Measurement:
    """Whether the tokens are those that one forward would choose, where it is sure."""
    answer = answers(subject, (prompt,), new).tokens[0]
    want_NV = wanted(subject, prompt, answer)[0]
    clear_N = -want_NV.topk(2, -1).values.diff(dim=-1)[:, 0] > 2 * subject.budget.value
    if not bool(clear_N.any()):
        raise Unsupported("the two best logits are nowhere further apart than rounding")
    wrong_N = want_NV.argmax(-1).cpu() != torch.tensor(answer)
    number, compared = float((wrong_N & clear_N.cpu()).sum()), int(clear_N.sum())
    unit = "tokens are not what one forward would choose"
    return of_generate(subject, AtMost(ARGMAX, number, unit, positions=compared), {})


def kept(subject: Subject, name: str, new: int) -> Measurement:
    """The last logits alone against those of one forward."""
    tokens = subject.inputs.tokens
    got_BNV = generation.kept_logits(subject, tokens, new)
    want_BNV = subject.logits(ForwardSpec(tokens))[:, -new:]
    return with_kept(subject, subject.compare(name, got_BNV, want_BNV), new)
