"""What generate() computes against one forward over what it produced.

What it checks
    The logits behind every token of a greedy generate() are those of one forward over prompt and
    answer, the tokens their argmax: with the cache on, off and static, for a left-padded batch,
    with the prompt in pieces, continued from a returned cache, from embeddings in place of ids.
    Beam search scores, of a left-padded batch too, are log-probabilities of its sequences;
    `logits_to_keep` keeps the last logits; forward reads `inputs_embeds` as it reads the ids behind
    them.

Why it matters
    generate() prepares positions, masks and caches on its own. Models whose positions start behind
    the padding id, encoders whose mask is lost after the first step, prompts cut in pieces: the
    model is right, and what it writes is wrong.

How it measures
    Everything is teacher-forced on generate()'s own tokens, so that one flip spoils nothing after
    it. The argmax is compared where the two best logits are further apart than rounding. Where
    there is an encoder, its input is padded as well.

False alarms
    A model whose own cache disagrees with one forward, or whose forward errs on a padded batch, is
    for `decode-paths` and `padding`: generate() is not blamed for it. Models that read ahead by
    design are not asked, nor is one that looks ids up in a second table asked for embeddings.

References
    Hugging Face transformers issues 36293 (T5: the encoder's mask is lost), 36536 (rounding that
    looks like this fault).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from attncheck.probing import (
    PIECES,
    AtMost,
    Comparison,
    Cost,
    ForwardSpec,
    Measurement,
    Probe,
    Row,
    Subject,
    Unsupported,
    attempt,
    cache_of,
    cached_length,
    generation,
    merged,
    padded_ids,
    with_batch,
    with_greedy,
    with_kept,
)
from attncheck_probes.generate.beams import beam_scores
from attncheck_probes.generate.embeddings import embedded, embedded_answer, replaced

# Axes: B batch, T positions, N generated tokens, V vocabulary.


@final
@dataclass(frozen=True, kw_only=True)
class Generate(Probe):
    """Generates greedily in many ways and asks one forward for the same logits."""

    name: ClassVar[str] = "generate"
    title: ClassVar[str] = "generate() computes what forward computes"
    cost: ClassVar[Cost] = "expensive"
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
        generation.require_causal(subject)
        _ = (
            subject.can.steps_agree,
            subject.can.chunks_agree,
        )  # asked before a control plants anything
        ways: dict[str, dict[str, Any]] = {
            "cache on": {},
            "cache off": {"use_cache": False},
            "prompt in pieces": {PIECES: self.pieces},
            "static cache": {"cache_implementation": "static"},
        }
        for name in ways:
            yield attempt(name, self._plain, subject, name, ways[name])
        yield attempt("tokens are the argmax", self._argmax, subject)
        for batch, way in (
            ("left-padded batch", "cache on"),
            ("left-padded batch, prompt in pieces", "prompt in pieces"),
        ):
            yield attempt(batch, self._batch, subject, batch, ways[way])
        yield attempt("continued from a returned cache", self._continued, subject)
        yield attempt("logits_to_keep", self._kept, subject)
        yield attempt("beam search scores", self._beams, subject)
        yield attempt("inputs_embeds", embedded, subject, "inputs_embeds")
        yield attempt("answer to inputs_embeds", self._embedded, subject)
        yield attempt("padded encoder", self._encoder, subject)

    def _prompt(self, subject: Subject) -> Row:
        return subject.inputs.row[
            : max(self.padding + 2, subject.inputs.length - 2 * self.new_tokens)
        ]

    def _plain(self, subject: Subject, name: str, options: dict[str, Any]) -> Measurement:
        made = generation.greedy(subject, self._prompt(subject), self.new_tokens, **options)
        case = _forced(subject, name, made.prompt, made.tokens, made.logits_BNV)
        case = with_greedy(subject, replace(case, note=made.positions_note), made, **options)
        return _of_generate(subject, case, options)

    def _argmax(self, subject: Subject) -> Measurement:
        made = generation.greedy(subject, self._prompt(subject), self.new_tokens)
        want_NV = _wanted(subject, made.prompt, made.tokens)[0]
        clear_N = -want_NV.topk(2, -1).values.diff(dim=-1)[:, 0] > 2 * subject.budget.value
        if not bool(clear_N.any()):
            raise Unsupported("the two best logits are nowhere further apart than rounding")
        wrong_N = want_NV.argmax(-1).cpu() != torch.tensor(made.tokens)
        case = AtMost(
            "tokens are the argmax",
            float((wrong_N & clear_N.cpu()).sum()),
            "tokens are not what one forward would choose",
            positions=int(clear_N.sum()),
        )
        return _of_generate(subject, case, {})

    def _batch(self, subject: Subject, name: str, options: dict[str, Any]) -> Measurement:
        (subject.can.mask_2d & subject.can.reads_mask).require()
        rows = (self._prompt(subject), self._prompt(subject)[self.padding :])
        made = generation.run(
            subject, *padded_ids(subject, rows, len(rows[0])), self.new_tokens, **options
        )
        answers = [tuple(map(int, row)) for row in made.sequences[:, -self.new_tokens :]]
        logits_BNV, each = torch.stack(made.logits, 1), enumerate(zip(rows, answers, strict=True))
        case = merged(
            name, [_forced(subject, name, *row, logits_BNV[i : i + 1]) for i, row in each]
        )
        case = with_batch(subject, case, rows, tuple(answers), options)
        if case.beyond:
            generation.require_padding(subject, rows, answers)
        return _of_generate(subject, case, options)

    def _continued(self, subject: Subject) -> Measurement:
        prompt = self._prompt(subject)
        first = generation.run(
            subject, *padded_ids(subject, (prompt,), len(prompt)), self.new_tokens
        )
        cache = cache_of(first)
        if not cached_length(cache) or subject.forward_adapter.cache_name is None:
            raise Unsupported("generate() returns no cache that counts its tokens")
        longer, given = generation.answer_of(first, 0), {subject.forward_adapter.cache_name: cache}
        made = generation.run(
            subject,
            *padded_ids(subject, (longer,), len(longer)),
            self.new_tokens,
            given=given,
        )
        answer, logits_BNV = generation.answer_of(made, len(longer)), torch.stack(made.logits, 1)
        return _of_generate(
            subject,
            _forced(subject, "continued from a returned cache", longer, answer, logits_BNV),
            {PIECES: 1},
        )

    def _kept(self, subject: Subject) -> Measurement:
        got_BNV = generation.kept_logits(subject, subject.inputs.tokens, self.new_tokens)
        want_BNV = subject.logits(ForwardSpec(subject.inputs.tokens))[:, -self.new_tokens :]
        return with_kept(
            subject, subject.compare("logits_to_keep", got_BNV, want_BNV), self.new_tokens
        )

    def _embedded(self, subject: Subject) -> Measurement:
        prompt = self._prompt(subject)
        answer, logits_BNV = embedded_answer(subject, prompt, self.new_tokens)
        case = replaced(
            subject, _forced(subject, "answer to inputs_embeds", prompt, answer, logits_BNV)
        )
        return _of_generate(subject, case, {})

    def _beams(self, subject: Subject) -> Measurement:
        return _of_generate(
            subject, beam_scores(subject, self._prompt(subject), self.padding, self.new_tokens), {}
        )

    def _encoder(self, subject: Subject) -> Measurement:
        given, prompt = generation.padded_encoder(subject, self.padding), self._prompt(subject)[:2]
        made = generation.run(
            subject,
            *padded_ids(subject, (prompt,), len(prompt)),
            self.new_tokens,
            given=given,
        )
        answer = generation.answer_of(made, -self.new_tokens)
        return _forced(subject, "padded encoder", prompt, answer, torch.stack(made.logits, 1))


def _of_generate(subject: Subject, case: Measurement, options: dict[str, Any]) -> Measurement:
    """The case, unless the model's own cache disagrees with one forward in the same way, generate()
    or not.
    """
    if case.beyond and options.get("use_cache", True):
        (subject.can.chunks_agree if PIECES in options else subject.can.steps_agree).require()
    return case


def _wanted(subject: Subject, prompt: Row, answer: Row) -> Tensor:
    """logits_BNV of one forward, at the positions from which the answer's tokens were drawn."""
    return subject.logits(ForwardSpec(((*prompt, *answer),)))[:, len(prompt) - 1 : -1]


def _forced(
    subject: Subject, name: str, prompt: Row, answer: Row, logits_BNV: Tensor
) -> Comparison:
    return subject.compare(
        name, logits_BNV, _wanted(subject, prompt, answer), offset=len(prompt) - 1
    )
