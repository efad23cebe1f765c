"""The reporter's own call, run as they run it, against each of their sequences alone.

Axes: B batch, T positions, N generated tokens, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

import torch
from torch import Tensor

from attncheck.core.divergence import Divergence
from attncheck.core.measurement import Comparison
from attncheck.core.merging import merged
from attncheck.diagnosis.failure import REFUSED
from attncheck.model.cache_kinds import new_cache
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.generation import run
from attncheck.model.inputs import Row, Tokens
from attncheck.model.noise_floor import own_budget
from attncheck.model.padding import Padded, Side, pad_id
from attncheck.model.provenance import with_generate, written
from attncheck.model.subject import Subject
from attncheck.triage import axes
from attncheck.triage.answer import GreedySplit, Question
from attncheck.triage.call_pattern import CallPattern
from attncheck.triage.encoder_call import encoder_case, reads_prompts
from attncheck.triage.greedy_split import split_of
from attncheck.triage.material import Material

SLOW = 30_000_000
"""From this many parameters on, long answers are cut and float64 runs only where it decides."""
FEW = 32
"""Tokens that a slow model generates at most."""
NAME = "the call as reported"
FEW_ALONE = 4
"""Of prompts that are called one by one so many are run."""
LONGER = 2
"""Sequences of so many times the main input's length get a budget of their own."""


@final
@dataclass(frozen=True)
class Seen:
    """What one run of the call showed: the case, and where text first goes another way."""

    case: Comparison
    split: GreedySplit | None = None


@final
@dataclass(frozen=True)
class OwnCall:
    """The call: its sequences, how they are called, and how many tokens are generated."""

    material: Material
    pattern: CallPattern
    generate: int = 0
    beams: int = 1
    singly: bool = False

    @property
    def side(self) -> Side:
        """The padding side."""
        return "right" if self.pattern.padding == "right" else "left"

    @property
    def rows(self) -> Tokens:
        """The sequences."""
        return self.material.rows[: self.pattern.batch]

    def padded(self, side: Side) -> OwnCall:
        """The same call, padded on a side."""
        return replace(self, pattern=replace(self.pattern, padding=side))

    def explicit(self) -> OwnCall:
        """The same call with positions that leave the padding out."""
        return replace(self, pattern=replace(self.pattern, positions="explicit"))

    def with_mask(self) -> OwnCall:
        """The same call with the mask of its padding."""
        return replace(self, pattern=replace(self.pattern, mask=""))

    def case(self, subject: Subject) -> Comparison:
        """The case alone."""
        return self.run(subject).case

    def run(self, subject: Subject) -> Seen:
        """Run it in the subject's precision.

        Raises:
            Unsupported: the model does not support the call.
        """
        if self.singly and len(self.rows) > 1:
            return self._alone(subject)
        if reads_prompts(subject):
            pad = pad_id(subject) if self.material.pad is None else self.material.pad
            new = min(self.generate, FEW)
            return Seen(encoder_case(subject, self.rows, self.side, pad, new, NAME))
        if self.generate and self.beams > 1:
            return Seen(_beams(subject, self))
        if self.generate:
            return _generated(subject, self)
        case = replace(axes.plain_case(subject, self.material, self.pattern), name=NAME)
        if case.beyond and self.material.length > LONGER * subject.inputs.length:
            longest = max(self.rows, key=len)
            budget = own_budget(subject.passes, ForwardSpec((longest,)))
            case = replace(case, budget=max(case.budget, budget.value))
        return Seen(case)

    def _alone(self, subject: Subject) -> Seen:
        """Each sequence in a call of its own."""
        pattern = replace(self.pattern, batch=1, padding="", mask="", positions="")
        seen = [
            OwnCall(replace(self.material, rows=(row,)), pattern, self.generate, self.beams).run(
                subject
            )
            for row in self.rows[:FEW_ALONE]
        ]
        splits = (each.split for each in seen if each.split is not None)
        return Seen(merged(NAME, [each.case for each in seen]), next(splits, None))

    def __str__(self) -> str:
        lengths = [len(row) for row in self.rows]
        whole = lengths.pop() if self.material.filled else 0
        counts = ", ".join(map(str, lengths[:8])) + (", …" if len(lengths) > 8 else "")
        rows = f"{len(lengths)} sequences" if len(lengths) > 1 else "one sequence"
        pattern = replace(self.pattern, batch=1)
        how = str(pattern) if pattern.axes else ""
        padding = (whole or max(lengths)) - min(lengths)
        padded = f"up to {padding} of padding" if self.pattern.padding and padding else ""
        text = f"generate() of {self.generate} tokens" if self.generate else "forward()"
        beams = f"{self.beams} beams" if self.beams > 1 else ""
        what = "of the prompts" if self.material.own else f"of drawn tokens ({self.material.why})"
        each = "each alone" if self.singly and len(lengths) > 1 else ""
        parts = (text, beams, f"{rows} {what}: {counts} tokens", each, padded, how)
        return ", ".join(part for part in parts if part)


def described(subject: Subject, call: OwnCall | None, material: Material) -> str:
    """What was run as the reporter's own call: of one prompt, a plain forward."""
    if call is None and material.whole and not reads_prompts(subject):
        call = OwnCall(material, CallPattern(batch=len(material.rows)))
    return str(call) if call else ""


def own_call(subject: Subject, question: Question, material: Material) -> OwnCall | None:
    """The call that a report describes; None where it describes no more than one plain forward."""
    pattern, rows = question.pattern, len(material.rows)
    if material.whole:
        pattern = _of_prompts(subject, question, material, replace(pattern, batch=rows))
    elif pattern.padding:
        cut = tuple(row[: len(row) - 3 * n] for n, row in enumerate(material.rows))
        material = replace(material, rows=cut, whole=True)
    generate = question.generate
    if reads_prompts(subject) and not (generate and material.whole):
        return None  # a forward reads a decoder's text as well, which no prompt is
    if question.issue.max_length:
        generate = max(1, question.issue.max_length - material.length)
    if pattern.padding and question.issue.unmasked:
        pattern = replace(pattern, mask="none")
    elif pattern.padding and question.issue.mask_of_ones:
        pattern = replace(pattern, mask="ones")
    if pattern.padding == "left" and not generate and not pattern.schedule:
        pattern = replace(pattern, positions=pattern.positions or "implicit")
    if generate and subject.facts.parameters > SLOW:
        generate = min(generate, FEW)
    call = OwnCall(material, pattern, generate, question.beams, question.singly)
    plain = question.singly and not replace(pattern, batch=1).axes
    return call if (pattern.axes and not plain) or generate else None


def _of_prompts(
    subject: Subject, question: Question, material: Material, pattern: CallPattern
) -> CallPattern:
    """The pattern with the padding that the prompts need."""
    if question.singly or not material.unequal:
        return replace(pattern, padding="")
    side = getattr(subject.tokenizer, "padding_side", "") or "left"
    return replace(pattern, padding=pattern.padding or side)


def _generated(subject: Subject, call: OwnCall) -> Seen:
    """Greedy text of the batch; each row's logits against one forward over its own text."""
    output = _generate(subject, call, call.rows)
    start = max(map(len, call.rows))
    answers = tuple(tuple(map(int, row[start:])) for row in output.sequences)
    logits_BNV = torch.stack(output.logits, 1)
    cases, split = [], None
    for index, (row, answer) in enumerate(zip(call.rows, answers, strict=True)):
        plain = ForwardSpec(((*row, *answer),))
        want_BNV = subject.logits(plain)[:, len(row) - 1 : -1]
        got_BNV = logits_BNV[index : index + 1].to(want_BNV.device)
        cases.append(_compared(subject, NAME, got_BNV, want_BNV, len(row), plain))
        split = split or split_of(subject.tokenizer, want_BNV[0], got_BNV[0], answer, len(row))
    case = merged(NAME, cases)
    if split is not None:
        split = replace(split, flips=case.divergence.top1_flips or 0, tokens=case.positions)
    return Seen(_rerun(subject, call, case, answers), split)


def _compared(
    subject: Subject, name: str, got_BNV: Tensor, want_BNV: Tensor, at: int, plain: ForwardSpec
) -> Comparison:
    case = subject.compare(name, got_BNV, want_BNV, offset=at, spec=(plain, plain))
    if case.beyond and plain.length > LONGER * subject.inputs.length:
        budget = own_budget(subject.passes, plain)
        case = replace(case, budget=max(case.budget, budget.value))
    return case


def _rerun(subject: Subject, call: OwnCall, case: Comparison, answers: Tokens) -> Comparison:
    """With the forwards that the text should have come from, for a diagnosis."""
    if call.pattern.padding == "right":
        return replace(case, rerun=None)
    got = written(subject, call.rows, answers)
    want = ForwardSpec(((*call.rows[0], *answers[0]),))
    again = partial(_again, call=call)
    return with_generate(case, (got, want), len(answers[0]), again)


def _again(subject: Subject, call: OwnCall) -> Tensor:
    return torch.stack(_generate(subject, call, call.rows).logits, 1)


def _generate(subject: Subject, call: OwnCall, rows: Tokens, **options: Any) -> Any:
    """generate() of a batch as the reporter calls it."""
    pad = pad_id(subject) if call.material.pad is None else call.material.pad
    length = max(map(len, rows))
    batch = Padded(rows=rows, length=length, pad=pad, inputs=subject.inputs)
    ids_BT = subject.passes.ids(batch.tokens(call.side))
    mask_BT = torch.tensor(batch.mask(call.side).rows, device=ids_BT.device)
    hidden = call.pattern.mask != "none" or pad not in _ends(subject)
    if call.pattern.mask == "ones" or not hidden:
        mask_BT = torch.ones_like(mask_BT)  # of another padding generate() finds the mask itself
    kind, given = call.pattern.cache, {}
    if kind not in ("", "on", "off"):
        size = {"rows": len(rows) * call.beams, "length": length + call.generate}
        given = {"past_key_values": new_cache(kind, subject.model, dtype=subject.dtype, **size)}
    if kind == "off":
        options["use_cache"] = False
    if call.beams > 1:
        options |= {"num_beams": call.beams, "output_scores": True}
    with subject.using(call.pattern.attn or None):
        return run(subject, ids_BT, mask_BT, call.generate, None, given, **options)


def _ends(subject: Subject) -> tuple[int, ...]:
    """The tokens that end a text."""
    ends = getattr(getattr(subject.model, "generation_config", None), "eos_token_id", None)
    own = getattr(subject.tokenizer, "eos_token_id", None)
    return tuple(each for each in (*(ends if isinstance(ends, list) else (ends,)), own) if each)


def _beams(subject: Subject, call: OwnCall) -> Comparison:
    """Beam search of the batch against that of each row alone without a cache: scores and text."""
    batch, start = _generate(subject, call, call.rows), max(map(len, call.rows))
    largest, flips, first = 0.0, 0, None
    for index, row in enumerate(call.rows):
        alone = _alone(subject, call, row)
        got, want = (batch.sequences[index, start:], alone.sequences[0, len(row) :])
        scores = (batch.sequences_scores[index], alone.sequences_scores[0])
        largest = max(largest, abs(float(scores[0]) - float(scores[1])))
        changed = (got != want.to(got.device)).nonzero().flatten()
        flips += len(changed)
        if len(changed):
            first = len(row) + int(changed[0])
    divergence = Divergence(
        max_abs=largest,
        positions=call.generate * len(call.rows),
        top1_flips=flips,
        first_position=first,
        scale=max(1.0, abs(float(alone.sequences_scores[0]))),
    )
    return Comparison(NAME, divergence, subject.budget.value, subject.budget.source)


def _alone(subject: Subject, call: OwnCall, row: Row) -> Any:
    """Beam search of one row, without a cache where the model has such calls."""
    plain = replace(call, pattern=CallPattern(cache="off"))
    try:
        return _generate(subject, plain, (row,))
    except REFUSED:
        return _generate(subject, replace(call, pattern=CallPattern()), (row,))
