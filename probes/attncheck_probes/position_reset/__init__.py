"""Positions continue, restart only when the caller restarts them, and are the same in generate().

What it checks
    Explicit positions are read. On a filled cache, positions left to the model continue the count.
    Restarting them on purpose changes the logits. Moving all of them by a constant leaves a purely
    rotary model as it was. generate() gives every real token the position that a plain forward
    gives it, with and without left padding.

Why it matters
    A sequence index, a logical position and a cache slot are three different things. Code that
    mixes them up works until the first cached chunk, the first padded batch, or the first model
    that counts from pad + 1.

How it measures
    Cached chunks with implicit positions against one forward with explicit ones; the same with
    restarted positions, which must differ. The shift is expected to change nothing where every
    layer's queries and keys keep their lengths and are only rotated: that is what makes a model
    purely rotary. It goes by a few positions, and far into the context, where tables may end and
    positions may be rounded; once more in the precision of the checkpoint, or under autocast, where
    it may change what moves by few positions do, times the factor between rounding and its limit.
    Values that are rotated inside a layer, which no config asks for, do
    not excuse it. Logits of generate() against a forward over what it produced. Where no
    positions change anything, modules that get a count of the model's own, or rotated queries of
    equal tokens, show that some must.

False alarms
    Models without an argument for positions, or without any use for them (biases, recurrent
    states), are skipped. Rotary models that also scale queries by position (Llama 4) are not
    invariant under a shift by design: their figure is shown, not judged.

References
    Su et al. 2021 (RoFormer). Hugging Face transformers, the family of RoBERTa: positions count
    from pad + 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from attncheck.probing import (
    ForwardSpec,
    Measurement,
    Probe,
    Subject,
    Unsupported,
    all_ones,
    attempt,
    counting,
    greedy,
    with_greedy,
)
from attncheck_probes.position_reset.far_in_half import AUTOCAST, STORED, far_in_half
from attncheck_probes.position_reset.kernel_inputs import unread
from attncheck_probes.position_reset.shifted import shifted

# Axes: B batch, T positions, V vocabulary, N generated tokens.

FAR = 4096
SHIFTED, SHIFTED_FAR = "all positions shifted", "all positions shifted far"


@dataclass(frozen=True, kw_only=True)
class PositionReset(Probe):
    """Passes positions, leaves them out, restarts and shifts them."""

    name = "position-reset"
    title = "positions continue across the cache and through generate()"
    promise = (SHIFTED, SHIFTED_FAR, AUTOCAST, STORED)
    needs = ("decodes", "sees_history", "takes_positions")
    controls = ("position-restart", "position-frozen", "position-offset", "position-ids-ignored")

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
        cases: dict[str, Callable[[Subject, str], Measurement]] = {
            "cached, implicit positions vs explicit": _continued,
            "cached, restarted positions must differ": _restarted,
            "no cache, implicit positions vs explicit": _implicit,
            "no cache, reversed positions must differ": _reversed,
            SHIFTED: self._shifted,
            SHIFTED_FAR: _far,
            "generate() vs forward": partial(self._generated, padding=0),
            "generate() left-padded vs forward": partial(self._generated, padding=self.padding),
        }
        for name, measured in cases.items():
            yield attempt(name, measured, subject, name)
        yield from far_in_half(subject, _room(subject) - subject.inputs.length)

    def _shifted(self, subject: Subject, name: str) -> Measurement:
        inputs = subject.inputs
        switches = [b.length - self.shift for b in inputs.boundaries if b.kind == "rope switch"]
        row = inputs.row[: min([inputs.length - self.shift, *switches])]
        return shifted(subject, name, row, self.shift)

    def _generated(self, subject: Subject, name: str, padding: int) -> Measurement:
        prompt = subject.inputs.row[: subject.inputs.length - self.new_tokens - padding]
        made, start = greedy(subject, prompt, self.new_tokens, padding), len(prompt) - 1
        want_BNV = subject.logits(ForwardSpec(((*prompt, *made.tokens),)))[:, start:-1]
        note = made.passed.note
        case = subject.compare(name, made.logits_BNV, want_BNV, offset=start, note=note)
        return with_greedy(subject, replace(case, cause=made.passed.cause), made, padding)


def _explicit(subject: Subject) -> ForwardSpec:
    return ForwardSpec(subject.inputs.tokens, positions=counting(1, subject.inputs.length))


def _in_halves(subject: Subject) -> ForwardSpec:
    subject.can.cache.require()
    half = subject.inputs.half
    return ForwardSpec(subject.inputs.tokens, chunks=(half, subject.inputs.length - half))


def _continued(subject: Subject, name: str) -> Measurement:
    return subject.compare_forwards(name, _in_halves(subject), _explicit(subject))


def _restarted(subject: Subject, name: str) -> Measurement:
    halves = _in_halves(subject)
    restarted = tuple(at for chunk in halves.chunks for at in range(chunk))
    fed, usual = (
        replace(halves, positions=each)
        for each in ((restarted,), counting(1, subject.inputs.length))
    )
    at = slice(halves.chunks[0], None)
    return subject.compare_forwards(name, fed, usual, at=at, expect="differ")


def _implicit(subject: Subject, name: str) -> Measurement:
    return subject.compare_forwards(name, ForwardSpec(subject.inputs.tokens), _explicit(subject))


def _reversed(subject: Subject, name: str) -> Measurement:
    """The forwards that show whether positions are read, of a model that has no other way."""
    if subject.can.cache:
        raise Unsupported("cached forwards with restarted positions ask the same")
    (ascending,) = counting(1, subject.inputs.length)
    mask = all_ones(subject.inputs.tokens) if subject.can.mask_2d else None
    usual, reversed_ = (
        ForwardSpec(subject.inputs.tokens, positions=(row,), mask=mask, use_cache=None)
        for row in (ascending, ascending[::-1])
    )
    return subject.compare_forwards(name, reversed_, usual, expect="differ")


def _far(subject: Subject, name: str) -> Measurement:
    row = subject.inputs.row[: subject.inputs.length // 2]
    return shifted(subject, name, row, _room(subject) - len(row))


def _room(subject: Subject) -> int:
    return min(FAR, subject.inputs.room - subject.can.first_position)
