"""What generate() computes against one forward over what it produced.

What it checks
    The logits behind every token of a greedy generate() are those of one forward over prompt and answer, and the tokens are
    their argmax: with the cache on and off, with a static cache, for a left-padded batch, with the prompt fed in pieces,
    continued from a returned cache. The scores of beam search are the log-probabilities of its sequences. `logits_to_keep`
    keeps the last logits.

Why it matters
    generate() prepares positions, masks and caches on its own. Models whose positions start behind the padding id, encoders
    whose mask is lost after the first step, prompts cut in pieces: the model is right, and what it writes is wrong.

How it measures
    Everything is teacher-forced on generate()'s own tokens, so that one flip spoils nothing after it. The argmax is compared
    where the two best logits are further apart than rounding. Where there is an encoder, its input is padded as well.

False alarms
    Models that take no positions cannot be padded on the left by design: shown, not judged. Rotary schemes that change with
    the length disagree with their own cache; the probe `decode-paths` says so too.

References
    Hugging Face transformers issues 36293 (T5: the encoder's mask is lost), 36536 (rounding that looks like this fault).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from attncheck.errors import Unsupported
from attncheck.finding import Evidence, Measurement, Ruling, merged
from attncheck.probe import Cost, attempt, judge_cases
from attncheck.subject.compat import cache_of, cached_length
from attncheck.subject.generation import greedy, kept_logits, padded, require_padding, require_yardstick, run
from attncheck.subject.inputs import Row
from attncheck.subject.passes import Pass
from attncheck.subject.subject import Subject

# Axes: B batch, T positions, N generated tokens, V vocabulary.

PIECES = "prefill_chunk_size"


@final
@dataclass(frozen=True, kw_only=True)
class Generate:
    """Generates greedily in many ways and asks one forward for the same logits."""

    name: ClassVar[str] = "generate"
    title: ClassVar[str] = "generate() computes what forward computes"
    cost: ClassVar[Cost] = "dear"
    needs: ClassVar[tuple[str, ...]] = ("sees_history", "decodes")
    controls: ClassVar[tuple[str, ...]] = (
        "generate-positions",
        "generate-repeats-token",
        "logits-to-keep",
    )

    new_tokens: int = 4
    padding: int = 3
    pieces: int = 4

    def measure(self, subject: Subject) -> Iterator[Measurement]:
        """The plain call first, then one change at a time."""
        require_yardstick(subject)
        _ = subject.can.steps_agree, subject.can.chunks_agree  # asked before a control plants anything
        ways: dict[str, dict[str, Any]] = {
            "cache on": {},
            "cache off": {"use_cache": False},
            "prompt in pieces": {PIECES: self.pieces},
            "static cache": {"cache_implementation": "static"},
        }
        for name, options in ways.items():
            yield attempt(name, lambda: self._plain(subject, name, options))  # noqa: B023
        yield attempt("tokens are the argmax", lambda: self._argmax(subject))
        for name, options in {"left-padded batch": {}, "left-padded batch, prompt in pieces": ways["prompt in pieces"]}.items():
            yield attempt(name, lambda: self._batch(subject, name, options))  # noqa: B023
        yield attempt("continued from a returned cache", lambda: self._continued(subject))
        yield attempt("logits_to_keep", lambda: self._kept(subject))
        yield attempt("beam search scores", lambda: self._beams(subject))
        yield attempt("padded encoder", lambda: self._encoder(subject))

    def judge(self, evidence: Evidence) -> Ruling:
        """The worst case decides."""
        return judge_cases(evidence)

    def _prompt(self, subject: Subject) -> Row:
        return subject.inputs.row[: max(self.padding + 2, subject.inputs.length - 2 * self.new_tokens)]

    def _plain(self, subject: Subject, name: str, options: dict[str, Any]) -> Measurement:
        made = greedy(subject, self._prompt(subject), self.new_tokens, **options)
        case = _forced(subject, name, self._prompt(subject), made.tokens, made.logits_BNV)
        return _of_generate(subject, replace(case, note=made.positions_note), options)

    def _argmax(self, subject: Subject) -> Measurement:
        prompt = self._prompt(subject)
        made = greedy(subject, prompt, self.new_tokens)
        want_NV = _wanted(subject, prompt, made.tokens)[0]
        best_N2 = want_NV.topk(2, -1).values
        clear_N = best_N2[:, 0] - best_N2[:, 1] > 2 * subject.budget.value
        wrong_N = want_NV.argmax(-1).cpu() != torch.tensor(made.tokens)
        case = Measurement(
            name="tokens are the argmax",
            expect="at-most",
            value=float((wrong_N & clear_N.cpu()).sum()),
            limit=0.0,
            unit="tokens are not what one forward would choose",
            positions=int(clear_N.sum()),
        )
        return _of_generate(subject, case, {})

    def _batch(self, subject: Subject, name: str, options: dict[str, Any]) -> Measurement:
        if subject.can.mask_2d or subject.can.reads_mask:
            raise Unsupported(str(subject.can.mask_2d or subject.can.reads_mask))
        rows = (self._prompt(subject), self._prompt(subject)[self.padding :])
        made = run(subject, *padded(subject, rows, len(rows[0])), self.new_tokens, **options)
        logits_BNV = torch.stack(made.logits, 1)
        answers = [tuple(map(int, row)) for row in made.sequences[:, -self.new_tokens :]]
        cases = [_forced(subject, name, *each, logits_BNV[i : i + 1]) for i, each in enumerate(zip(rows, answers, strict=True))]
        case = replace(merged(name, cases), nonfinite=int((~torch.isfinite(logits_BNV)).sum()))
        if case.excess > 1.0:
            require_padding(subject, rows, answers)
        return _of_generate(subject, case, options)

    def _continued(self, subject: Subject) -> Measurement:
        prompt = self._prompt(subject)
        first = run(subject, *padded(subject, (prompt,), len(prompt)), self.new_tokens)
        cache = cache_of(first)
        if not cached_length(cache) or subject.door.cache_name is None:
            raise Unsupported("generate() returns no cache that counts its tokens")
        longer = tuple(map(int, first.sequences[0]))
        given = {subject.door.cache_name: cache}
        made = run(subject, *padded(subject, (longer,), len(longer)), self.new_tokens, given=given)
        case = _forced(
            subject, "continued from a returned cache", longer, _answer(made, len(longer)), torch.stack(made.logits, 1)
        )
        return _of_generate(subject, case, {PIECES: 1})

    def _kept(self, subject: Subject) -> Measurement:
        got_BNV = kept_logits(subject, subject.inputs.tokens, self.new_tokens)
        want_BNV = subject.logits(Pass(subject.inputs.tokens))[:, -self.new_tokens :]
        return subject.compare("logits_to_keep", got_BNV, want_BNV, offset=subject.inputs.length - self.new_tokens)

    def _beams(self, subject: Subject) -> Measurement:
        prompt = self._prompt(subject)
        made = run(subject, *padded(subject, (prompt,), len(prompt)), self.new_tokens, num_beams=2, output_scores=True)
        if getattr(made, "sequences_scores", None) is None:
            raise Unsupported("generate() returns no scores of its beams")
        answer = _answer(made, len(prompt))
        want_NV = _wanted(subject, prompt, answer)[0].double()
        logs_NV = want_NV.log_softmax(-1)
        mean = float(logs_NV[torch.arange(len(answer)), torch.tensor(answer)].mean())
        case = Measurement(
            name="beam search scores",
            max_abs=abs(float(made.sequences_scores[0]) - mean),
            budget=2 * subject.budget.value + torch.finfo(torch.float32).eps * abs(mean),
            budget_from=f"twice the budget of the logits ({subject.budget.source}) and one float32 rounding",
            positions=len(answer),
            scale=float(want_NV.abs().max()),
            unit="scores",
            note="the log-probability of the best sequence",
        )
        return _of_generate(subject, case, {})

    def _encoder(self, subject: Subject) -> Measurement:
        ids_BS = subject.door.fixed.get("input_ids")
        if not isinstance(ids_BS, Tensor):
            raise Unsupported("the model has no encoder that reads ids")
        prompt = self._prompt(subject)[:2]
        mask_BS = torch.ones_like(ids_BS)
        tail_BS = torch.full((1, self.padding), subject.inputs.pool[0])
        wider = {"input_ids": torch.cat([ids_BS, tail_BS], 1), "attention_mask": torch.cat([mask_BS, 0 * tail_BS], 1)}
        given = {name: value.to(subject.device) for name, value in wider.items()}
        made = run(subject, *padded(subject, (prompt,), len(prompt)), self.new_tokens, given=given)
        return _forced(subject, "padded encoder", prompt, _answer(made, -self.new_tokens), torch.stack(made.logits, 1))


def _of_generate(subject: Subject, case: Measurement, options: dict[str, Any]) -> Measurement:
    """The case, unless the model's own cache disagrees with one forward in the same way, generate() or not."""
    reason = subject.can.chunks_agree if PIECES in options else subject.can.steps_agree
    if case.excess > 1.0 and reason and options.get("use_cache", True):
        raise Unsupported(reason)
    return case


def _answer(made: Any, start: int) -> Row:
    return tuple(map(int, made.sequences[0, start:]))


def _wanted(subject: Subject, prompt: Row, answer: Row) -> Tensor:
    """logits_BNV of one forward, at the positions from which the answer's tokens were drawn."""
    return subject.logits(Pass(((*prompt, *answer),)))[:, len(prompt) - 1 : -1]


def _forced(subject: Subject, name: str, prompt: Row, answer: Row, logits_BNV: Tensor) -> Measurement:
    return subject.compare(name, logits_BNV, _wanted(subject, prompt, answer), offset=len(prompt) - 1)
