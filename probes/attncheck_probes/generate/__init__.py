"""generate() computes what one forward over its output computes.

What it checks
    The logits behind every token of a greedy generate() are those of one forward over prompt and
    answer, the tokens their argmax: with the cache on, off and static, for a left-padded batch,
    with the prompt in chunks, continued from a returned cache, from embeddings in place of ids,
    where another row ends early, where the mask hides tokens in the middle, where candidates are
    looked up in the prompt or come from the model itself. Beam search scores, on a static cache and
    beside another encoder input too, are log-probabilities; `logits_to_keep` keeps the last logits;
    forward reads `inputs_embeds` as it reads the ids behind them.

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

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from attncheck.probing import (
    PIECES,
    Measurement,
    Probe,
    Row,
    Subject,
    Tokens,
    attempt,
    generation,
    media_answers,
    with_greedy,
)
from attncheck_probes.generate import speculation, turns
from attncheck_probes.generate.answers import ARGMAX, answers, argmax, compare, kept, of_generate
from attncheck_probes.generate.beams import TWO_ENCODED, beam_scores, beside_another_encoder
from attncheck_probes.generate.embeddings import embedded, embedded_answer

# Axes: B batch, T positions, N generated tokens, V vocabulary.

Options = dict[str, Any]
STATIC: Options = {"cache_implementation": "static"}


@dataclass(frozen=True, kw_only=True)
class Generate(Probe):
    """Generates greedily in many ways, and computes the same logits in one forward."""

    name = "generate"
    title = "generate() computes what forward computes"
    cost = "expensive"
    needs = ("sees_history", "decodes")
    controls = (
        "generate-positions",
        "generate-repeats-token",
        "logits-to-keep",
        "dropout-active",
        "finished-row-moves",
        "crop-of-nothing",
    )

    new_tokens: int = 4
    padding: int = 3
    pieces: int = 4

    def measure(self, subject: Subject) -> Iterator[Measurement]:
        """The plain call first, then one change at a time."""
        generation.generate_of(subject)
        if self._short(subject.inputs.length) != self:
            yield from self._short(subject.inputs.length).measure(subject)
            return
        # a control must find these answered for the healthy model
        _ = subject.can.steps_agree, subject.can.chunks_agree
        chunked = {PIECES: self.pieces}
        plain: dict[str, Options] = {
            "cache on": {},
            "cache off": {"use_cache": False},
            "prompt in pieces": chunked,
            "static cache": STATIC,
        }
        for name, options in plain.items():
            yield attempt(name, self._plain, subject, name, options)
        yield attempt(ARGMAX, argmax, subject, self._prompt(subject), self.new_tokens)
        padded: dict[str, Options] = {
            "left-padded batch": {},
            "left-padded batch, prompt in pieces": chunked,
        }
        for name, options in padded.items():
            rows = self._rows(subject)
            yield attempt(name, turns.batch, subject, name, rows, self.new_tokens, options)
        yield from self._turns(subject)
        rest: dict[str, Callable[[Subject, str], Measurement]] = {
            "logits_to_keep": partial(kept, new=self.new_tokens),
            "beam search scores": self._beams,
            "beam search scores, static cache": partial(self._beams, **STATIC),
            **({TWO_ENCODED: self._encoders} if subject.forward_adapter.fixed else {}),
            "inputs_embeds": embedded,
            "answer to inputs_embeds": self._embedded,
            "padded encoder": self._encoder,
        }
        for name, measured in rest.items():
            yield attempt(name, measured, subject, name)
        yield from media_answers.answers(subject, self.new_tokens)

    def _short(self, length: int) -> Generate:
        """The same probe with answers and padding for which a short row, and so a short context,
        has room.
        """
        new = min(self.new_tokens, max(1, (length - 2) // 4))
        prompt = length - 2 * new
        padding, pieces = min(self.padding, prompt - 2), min(self.pieces, prompt - 1)
        return replace(self, new_tokens=new, padding=max(1, padding), pieces=max(1, pieces))

    def _prompt(self, subject: Subject) -> Row:
        return subject.inputs.row[: subject.inputs.length - 2 * self.new_tokens]

    def _plain(self, subject: Subject, name: str, options: Options) -> Measurement:
        if PIECES in options:
            subject.can.cache.require()
        prompt = self._prompt(subject)
        made = answers(subject, (prompt,), self.new_tokens).generated if not options else None
        made = made or generation.greedy(subject, prompt, self.new_tokens, **options)
        case = compare(subject, name, made.prompt, made.tokens, made.logits_BNV)
        case = with_greedy(
            subject, replace(case, note=made.passed.note, cause=made.passed.cause), made, **options
        )
        case = made.passed.explained(case)
        return of_generate(subject, case, options)

    def _rows(self, subject: Subject) -> Tokens:
        """The prompt, and the prompt without its first tokens."""
        return (self._prompt(subject), self._prompt(subject)[self.padding :])

    def _turns(self, subject: Subject) -> Iterator[Measurement]:
        rows, new = self._rows(subject), self.new_tokens
        name = "a row that ends early"
        yield attempt(name, turns.ends_early, subject, name, rows, new)
        yield attempt(turns.HOLE, turns.hole, subject, rows[0], new)
        name = "continued from a returned cache"  # which changes it, so that nobody has it behind
        yield attempt(name, turns.continued, subject, name, rows[:1], new)
        name = "left-padded batch, continued"
        yield attempt(name, turns.continued, subject, name, rows, new)
        yield attempt(speculation.LOOKUP, speculation.looked_up, subject, rows[0], new)
        yield attempt(speculation.ITSELF, speculation.assisted, subject, rows[0], new)

    def _embedded(self, subject: Subject, name: str) -> Measurement:
        case = embedded_answer(subject, name, self._prompt(subject), self.new_tokens)
        return of_generate(subject, case, {})

    def _beams(self, subject: Subject, name: str, **options: Any) -> Measurement:
        if options:
            subject.can.library_cache.require()
        prompt = self._prompt(subject)
        case = beam_scores(subject, prompt, self.padding, self.new_tokens, name, **options)
        return of_generate(subject, case, {})

    def _encoders(self, subject: Subject, name: str) -> Measurement:
        case = beside_another_encoder(subject, self._prompt(subject), self.new_tokens, name)
        return of_generate(subject, case, {})

    def _encoder(self, subject: Subject, name: str) -> Measurement:
        prompt = self._prompt(subject)[:2]
        return turns.padded_encoder(subject, name, prompt, self.padding, self.new_tokens)
