"""Positions continue, restart only when told to, and are what generate() hands over.

What it checks
    Positions that are handed in are read. On a filled cache, positions left to the model continue
    the count. Restarting them on purpose changes the logits. Moving all of them by a constant
    leaves a purely rotary model as it was. generate() gives every real token the position that a
    plain forward gives it, with and without left padding.

Why it matters
    A sequence index, a logical position and a cache slot are three different things. Code that
    mixes them up works until the first cached chunk, the first padded batch, or the first model
    that counts from pad + 1.

How it measures
    Cached chunks with implicit positions against one forward with explicit ones; the same with
    restarted positions, which must differ. The shift is expected to change nothing where every
    layer's queries and keys keep their lengths and only turn: that is what makes a model purely
    rotary. It goes by a few positions, and far into the context, where tables may end and positions
    may be rounded. Logits of generate() against a forward over what it produced. Where no positions
    change anything, modules that get a count of the model's own, or queries of equal tokens that
    turn, say that some must.

False alarms
    Models without an argument for positions, or without any use for them (biases, recurrent
    states), are skipped. Rotary models that also scale queries by position (Llama 4) are not
    invariant under a shift by design: their figure is shown, not judged.

References
    Su et al. 2021 (RoFormer). Hugging Face transformers, the family of RoBERTa: positions count
    from pad + 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, final

from attncheck.probing import (
    ForwardSpec,
    Measurement,
    Probe,
    Subject,
    attempt,
    counting,
    greedy,
    with_greedy,
)
from attncheck_probes.position_reset.kernel_inputs import unread
from attncheck_probes.position_reset.shifted import shifted

# Axes: B batch, T positions, V vocabulary, N generated tokens.

FAR = 4096


@final
@dataclass(frozen=True, kw_only=True)
class PositionReset(Probe):
    """Gives positions, leaves them out, restarts and shifts them."""

    name: ClassVar[str] = "position-reset"
    title: ClassVar[str] = "positions continue across the cache and through generate()"
    needs: ClassVar[tuple[str, ...]] = ("decodes", "sees_history", "takes_positions")
    controls: ClassVar[tuple[str, ...]] = (
        "position-restart",
        "position-frozen",
        "position-offset",
        "position-ids-ignored",
    )

    shift: int = 3
    new_tokens: int = 3
    padding: int = 3

    def measure(self, subject: Subject) -> Iterator[Measurement]:
        """Whether positions are read at all; implicit against explicit, restarted, shifted, and
        generate().
        """
        reads_positions = subject.capability("reads_positions")
        if not reads_positions:
            yield unread(subject, reads_positions.reason)
            return
        yield attempt("cached, implicit positions vs explicit", self._continued, subject)
        yield attempt("cached, restarted positions must differ", self._restarted, subject)
        yield attempt("no cache, implicit positions vs explicit", self._implicit, subject)
        yield attempt("all positions shifted", self._shifted, subject)
        yield attempt("all positions shifted far", self._far, subject)
        yield attempt("generate() vs forward", self._generated, subject, 0)
        yield attempt("generate() left-padded vs forward", self._generated, subject, self.padding)

    def _halves(self, subject: Subject) -> tuple[int, int]:
        subject.can.cache.require()
        return subject.inputs.length // 2, subject.inputs.length - subject.inputs.length // 2

    def _continued(self, subject: Subject) -> Measurement:
        implicit = ForwardSpec(subject.inputs.tokens, chunks=self._halves(subject))
        explicit = ForwardSpec(subject.inputs.tokens, positions=counting(1, subject.inputs.length))
        name, spec = "cached, implicit positions vs explicit", (implicit, explicit)
        return subject.compare(name, subject.logits(implicit), subject.logits(explicit), spec=spec)

    def _restarted(self, subject: Subject) -> Measurement:
        halves = self._halves(subject)
        restarted = (tuple(range(halves[0])) + tuple(range(halves[1])),)
        fed = ForwardSpec(subject.inputs.tokens, chunks=halves, positions=restarted)
        usual = ForwardSpec(
            subject.inputs.tokens, chunks=halves, positions=counting(1, subject.inputs.length)
        )
        got_BTV, want_BTV = (
            subject.logits(fed)[:, halves[0] :],
            subject.logits(usual)[:, halves[0] :],
        )
        name, spec = "cached, restarted positions must differ", (fed, usual)
        return subject.compare(
            name, got_BTV, want_BTV, expect="differ", offset=halves[0], spec=spec
        )

    def _implicit(self, subject: Subject) -> Measurement:
        explicit = ForwardSpec(subject.inputs.tokens, positions=counting(1, subject.inputs.length))
        implicit = ForwardSpec(subject.inputs.tokens)
        name, spec = "no cache, implicit positions vs explicit", (implicit, explicit)
        return subject.compare(name, subject.logits(implicit), subject.logits(explicit), spec=spec)

    def _shifted(self, subject: Subject) -> Measurement:
        switches = [
            b.length - self.shift for b in subject.inputs.boundaries if b.kind == "rope switch"
        ]
        row = subject.inputs.row[: min([subject.inputs.length - self.shift, *switches])]
        return shifted(subject, "all positions shifted", row, self.shift)

    def _far(self, subject: Subject) -> Measurement:
        row = subject.inputs.row[: subject.inputs.length // 2]
        room = subject.inputs.room - subject.can.first_position
        return shifted(subject, "all positions shifted far", row, min(FAR, room) - len(row))

    def _generated(self, subject: Subject, padding: int) -> Measurement:
        name = "generate() left-padded vs forward" if padding else "generate() vs forward"
        prompt = subject.inputs.row[: subject.inputs.length - self.new_tokens - padding]
        made = greedy(subject, prompt, self.new_tokens, padding)
        want_BNV = subject.logits(ForwardSpec(((*prompt, *made.tokens),)))[:, len(prompt) - 1 : -1]
        case = subject.compare(
            name, made.logits_BNV, want_BNV, offset=len(prompt) - 1, note=made.positions_note
        )
        return with_greedy(subject, case, made, padding)
