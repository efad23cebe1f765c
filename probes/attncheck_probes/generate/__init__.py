"""generate() computes what one forward over its output computes.

What it checks
    The logits behind every token of a greedy generate() are those of one forward over prompt and
    answer, the tokens their argmax: with the cache on, off and static, for a left-padded batch,
    with the prompt in chunks, continued from a returned cache, from embeddings in place of ids.
    Beam search scores, of a left-padded batch too, are log-probabilities of its sequences;
    `logits_to_keep` keeps the last logits; forward reads `inputs_embeds` as it reads the ids behind
    them.

Why it matters
    generate() prepares positions, masks and caches on its own. Models whose positions start behind
    the padding id, encoders whose mask is lost after the first step, prompts cut in chunks: the
    model is right, and what it writes is wrong.

How it measures
    Everything is teacher-forced on generate()'s own tokens, so that one flip spoils nothing after
    it. The argmax is compared where the two best logits are further apart than rounding. Where
    there is an encoder, its input is padded as well.

False alarms
    Where one forward errs on a padded batch as well, it is the reference for that batch. Models
    that read ahead by design are skipped, and so are embeddings beside a second table for ids.

References
    Hugging Face transformers issues 36293 (T5: the encoder's mask is lost), 36536 (rounding that
    looks like this fault).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from attncheck.probing import (
    PIECES,
    AtMost,
    ForwardSpec,
    Measurement,
    Probe,
    Row,
    Subject,
    Unsupported,
    attempt,
    cache_of,
    cached_length,
    following,
    generation,
    media_answers,
    with_batch,
    with_greedy,
    with_kept,
)
from attncheck_probes.generate.answers import answers, compare, wanted
from attncheck_probes.generate.beams import beam_scores
from attncheck_probes.generate.embeddings import embedded, embedded_answer

# Axes: B batch, T positions, N generated tokens, V vocabulary.

Options = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Generate(Probe):
    """Generates greedily in many ways, and computes the same logits in one forward."""

    name = "generate"
    title = "generate() computes what forward computes"
    cost = "expensive"
    needs = ("sees_history", "decodes")
    controls = ("generate-positions", "generate-repeats-token", "logits-to-keep", "dropout-active")

    new_tokens: int = 4
    padding: int = 3
    pieces: int = 4

    def measure(self, subject: Subject) -> Iterator[Measurement]:
        """The plain call first, then one change at a time."""
        generation.generate_of(subject)
        # a control must find these answered for the healthy model
        _ = subject.can.steps_agree, subject.can.chunks_agree
        chunked = {PIECES: self.pieces}
        plain: dict[str, Options] = {
            "cache on": {},
            "cache off": {"use_cache": False},
            "prompt in pieces": chunked,
            "static cache": {"cache_implementation": "static"},
        }
        for name, options in plain.items():
            yield attempt(name, self._plain, subject, name, options)
        yield attempt("tokens are the argmax", self._argmax, subject, "tokens are the argmax")
        padded: dict[str, Options] = {
            "left-padded batch": {},
            "left-padded batch, prompt in pieces": chunked,
        }
        for name, options in padded.items():
            yield attempt(name, self._batch, subject, name, options)
        for name, measured in {
            "continued from a returned cache": self._continued,
            "logits_to_keep": self._kept,
            "beam search scores": self._beams,
            "inputs_embeds": embedded,
            "answer to inputs_embeds": self._embedded,
            "padded encoder": self._encoder,
        }.items():
            yield attempt(name, measured, subject, name)
        yield from media_answers.answers(subject, self.new_tokens)

    def _prompt(self, subject: Subject) -> Row:
        length = max(self.padding + 2, subject.inputs.length - 2 * self.new_tokens)
        return subject.inputs.row[:length]

    def _plain(self, subject: Subject, name: str, options: Options) -> Measurement:
        if PIECES in options:
            subject.can.cache.require()
        made = generation.greedy(subject, self._prompt(subject), self.new_tokens, **options)
        case = compare(subject, name, made.prompt, made.tokens, made.logits_BNV)
        case = with_greedy(subject, replace(case, note=made.positions_note), made, **options)
        return _of_generate(subject, case, options)

    def _argmax(self, subject: Subject, name: str) -> Measurement:
        made = generation.greedy(subject, self._prompt(subject), self.new_tokens)
        want_NV = wanted(subject, made.prompt, made.tokens)[0]
        clear_N = -want_NV.topk(2, -1).values.diff(dim=-1)[:, 0] > 2 * subject.budget.value
        if not bool(clear_N.any()):
            raise Unsupported("the two best logits are nowhere further apart than rounding")
        wrong_N = want_NV.argmax(-1).cpu() != torch.tensor(made.tokens)
        number, compared = float((wrong_N & clear_N.cpu()).sum()), int(clear_N.sum())
        unit = "tokens are not what one forward would choose"
        return _of_generate(subject, AtMost(name, number, unit, positions=compared), {})

    def _batch(self, subject: Subject, name: str, options: Options) -> Measurement:
        subject.can.mask_2d.require()
        if PIECES in options:
            subject.can.cache.require()
        rows = (self._prompt(subject), self._prompt(subject)[self.padding :])
        found = answers(subject, rows, self.new_tokens, **options)
        case = found.compared(subject, name)
        case = with_batch(subject, case, rows, found.tokens, options)
        if case.beyond and not found.padding_holds(subject):
            case = found.compared_padded(subject, name)
        return _of_generate(subject, case, options)

    def _continued(self, subject: Subject, name: str) -> Measurement:
        first = answers(subject, (self._prompt(subject),), self.new_tokens).output
        cache, cache_name = cache_of(first), subject.forward_adapter.cache_name
        if not cached_length(cache) or cache_name is None:
            raise Unsupported("generate() returns no cache that counts its tokens")
        longer = generation.answer_of(first, 0)
        found = answers(subject, (longer,), self.new_tokens, given={cache_name: cache})
        return _of_generate(subject, found.compared(subject, name), {PIECES: 1})

    def _kept(self, subject: Subject, name: str) -> Measurement:
        tokens, kept = subject.inputs.tokens, self.new_tokens
        got_BNV = generation.kept_logits(subject, tokens, kept)
        want_BNV = subject.logits(ForwardSpec(tokens))[:, -kept:]
        return with_kept(subject, subject.compare(name, got_BNV, want_BNV), kept)

    def _embedded(self, subject: Subject, name: str) -> Measurement:
        case = embedded_answer(subject, name, self._prompt(subject), self.new_tokens)
        return _of_generate(subject, case, {})

    def _beams(self, subject: Subject, name: str) -> Measurement:
        case = beam_scores(subject, self._prompt(subject), self.padding, self.new_tokens)
        return _of_generate(subject, case, {})

    def _encoder(self, subject: Subject, name: str) -> Measurement:
        given, prompt = generation.padded_encoder(subject, self.padding), self._prompt(subject)[:2]
        return answers(subject, (prompt,), self.new_tokens, given=given).compared(subject, name)


def _of_generate(subject: Subject, case: Measurement, options: Options) -> Measurement:
    """The case, which says where the model's own cache differs outside generate() as well."""
    can = subject.can.chunks_agree if PIECES in options else subject.can.steps_agree
    if not case.beyond or not options.get("use_cache", True) or can:
        return case
    return following(case, "decode-paths", can.reason)
