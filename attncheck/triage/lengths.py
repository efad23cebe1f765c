"""Lengths: one long forward is the reference of every shorter one, alone, padded and on a cache.

A length that fails is followed to the first one that does, and to the rule that they follow.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import final

from torch import Tensor

from attncheck.core.measurement import Comparison, Rerun
from attncheck.diagnosis.failure import REFUSED
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.inputs import Row
from attncheck.model.noise_floor import own_budget
from attncheck.model.padding import Padded, left_padded, pad_id
from attncheck.model.subject import Subject
from attncheck.triage import axes
from attncheck.triage.own_call import SLOW

POWERS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
MODULI = (8, 16, 32, 64, 128)
IN_TURN = 34
"""Every length after the main input's, so many of them, is tried: a modulus of 32 has no gap."""
LONGEST = 2203
LONGEST_SLOW = 541
PADDING = 3
ALONE, PADDED, CHUNKED = "by themselves", "left-padded", "in two pieces on a cache"
WAYS = (ALONE, PADDED, CHUNKED)


@final
@dataclass
class LengthSweep:
    """The lengths that were tried on one long row. `row` may begin with the reporter's prompt.

    `spent` ends the search early.
    """

    subject: Subject
    row: Row
    spent: Callable[[], bool]
    says: Callable[[str], None] = lambda what: None
    known: dict[tuple[int, str], Comparison | None] = field(default_factory=dict)

    @cached_property
    def reference_BTV(self) -> Tensor:
        """The logits of the whole row, which every shorter one is compared with."""
        return self.subject.logits(ForwardSpec((self.row,)))

    def case(self, length: int, way: str) -> Comparison | None:
        """The first `length` tokens in a way; None where the model does not support it."""
        key = length, way
        if key not in self.known:
            self.says(f"{length} tokens {way}")
            try:
                self.known[key] = self._measured(length, way)
            except REFUSED:
                self.known[key] = None
        return self.known[key]

    def fails(self, length: int, way: str) -> bool:
        """Whether this length differs from the long forward beyond rounding."""
        case = self.case(length, way) if 0 < length <= len(self.row) else None
        return case is not None and axes.fails(case) and not case.in_doubt

    def _measured(self, length: int, way: str) -> Comparison:
        subject, row = self.subject, self.row[:length]
        spec, start = _spec(subject, row, way)
        got_BTV, want_BTV = subject.logits(spec)[:, start:], self.reference_BTV[:, : length - start]
        name = f"{length} tokens {way}"
        whole = ForwardSpec((row[: length - start],))
        case = subject.compare(name, got_BTV, want_BTV, offset=start, spec=(spec, whole))
        if case.beyond and len(self.row) > 2 * subject.inputs.length:
            budget = own_budget(subject.passes, ForwardSpec((self.row,)))
            case = replace(case, budget=max(case.budget, budget.value))
        return case

    @property
    def cases(self) -> tuple[Comparison, ...]:
        """Everything that was measured."""
        return tuple(case for case in self.known.values() if case is not None)


def _spec(subject: Subject, row: Row, way: str) -> tuple[ForwardSpec, int]:
    """The forward of a way, and how many of its columns are padding."""
    if way == PADDED:
        real = row[: len(row) - PADDING]
        pad = pad_id(subject)
        batch = Padded(rows=(real,), length=len(row), pad=pad, inputs=subject.inputs)
        subject.can.mask_2d.require()
        return left_padded(subject, batch), PADDING
    if way == CHUNKED:
        (subject.can.cache & subject.can.steps).require()
        half = len(row) // 2
        return ForwardSpec((row,), chunks=(half, len(row) - half)), 0
    return ForwardSpec((row,)), 0


@final
@dataclass(frozen=True)
class Broken:
    """A length that fails, in which way, the first such length, and the rule in words."""

    length: int
    way: str
    rule: str
    case: Comparison


def planned(subject: Subject, row: Row) -> Iterator[tuple[int, str]]:
    """Which lengths to try in which ways: boundaries and powers first, then each in turn."""
    usual, longest = subject.inputs.length, len(row)
    near = {size + step for size in POWERS for step in (0, 1)}
    near |= {each.length + step for each in subject.facts.boundaries for step in (0, 1, 3)}
    near |= {longest}
    for length in sorted(length for length in near if usual < length <= longest):
        yield from ((length, way) for way in WAYS)
    if subject.facts.parameters > SLOW:
        return
    for length in range(usual + 1, min(longest, usual + IN_TURN) + 1):
        yield from ((length, way) for way in (ALONE, PADDED))


def swept(sweep: LengthSweep) -> Broken | None:
    """The first of the planned lengths that fails, with its rule."""
    for length, way in planned(sweep.subject, sweep.row):
        if sweep.spent():
            return None
        if sweep.fails(length, way):
            return _followed(sweep, length, way)
    return None


def _followed(sweep: LengthSweep, length: int, way: str) -> Broken:
    """The first length that fails as this one does, and the rule: a modulus, or a limit."""
    usual = sweep.subject.inputs.length
    if sweep.fails(usual, ALONE):
        return _long_is_wrong(sweep, usual)
    if length < len(sweep.row) and not sweep.fails(length + 1, way):
        return _modulus(sweep, length, way)
    passed = [at for at, how in sweep.known if how == way and not sweep.fails(at, how)]
    low, high = max((at for at in passed if at < length), default=0), length
    while high - low > 1 and not sweep.spent():
        middle = (low + high) // 2
        low, high = (low, middle) if sweep.fails(middle, way) else (middle, high)
    return _of(sweep, high, way, limit(sweep.subject, high))


def _long_is_wrong(sweep: LengthSweep, usual: int) -> Broken:
    """Short lengths differ from the long forward. Where one token less makes a right one, its
    length is the wrong one; else the first length that differs from the short ones is.
    """
    nearly = replace(sweep, row=sweep.row[:-1], known={})
    if not nearly.fails(usual, ALONE):
        found = swept(nearly)
        if found is not None:
            return found
    low, high = usual, len(sweep.row)
    while high - low > 1 and not sweep.spent():
        middle = (low + high) // 2
        wrong = replace(sweep, row=sweep.row[:middle], known={}).fails(usual, ALONE)
        low, high = (low, middle) if wrong else (middle, high)
    case = replace(sweep, row=sweep.row[:high], known={}).case(usual, ALONE)
    assert case is not None
    return Broken(high, ALONE, limit(sweep.subject, high), _turned(case, sweep.row[:high]))


def _turned(case: Comparison, long: Row) -> Comparison:
    """The case with the long forward as the wrong one."""
    assert case.rerun is not None
    short = case.rerun.want
    spec = ForwardSpec((long,))
    return replace(case, name=f"{len(long)} tokens {ALONE}", rerun=Rerun(spec, short))


def _modulus(sweep: LengthSweep, length: int, way: str) -> Broken:
    """The period of lengths that fail one by one."""
    for period in (*range(2, MODULI[0]), *MODULI):
        again = [at for at in (length + period, length + 2 * period) if at <= len(sweep.row)]
        if again and all(sweep.fails(at, way) for at in again):
            rest = length % period
            earlier = range(rest or period, length, period)
            first = next((at for at in earlier if at > 1 and sweep.fails(at, way)), length)
            rule = f"lengths of {period} k + {rest}" if rest else f"multiples of {period}"
            return _of(sweep, first, way, rule)
    return _of(sweep, length, way, f"a length of {length}")


def _of(sweep: LengthSweep, length: int, way: str, rule: str) -> Broken:
    case = sweep.case(length, way)
    assert case is not None
    return Broken(length, way, rule, case)


def limit(subject: Subject, first: int) -> str:
    """From which length on, and what of the config it belongs to."""
    near = {each.kind: each.length for each in subject.facts.boundaries}
    near |= {"context": subject.facts.context} if subject.facts.context else {}
    named = next((f" (the {kind} is {at})" for kind, at in near.items() if at + 1 == first), "")
    return f"lengths beyond {first - 1}{named}"


def long_row(subject: Subject, own: Row) -> Row:
    """The reporter's longest prompt, with drawn tokens behind it up to what is affordable: within
    the context and below every switch of the rotary table, which changes all logits by design.
    """
    room = subject.inputs.room
    most = LONGEST_SLOW if subject.facts.parameters > SLOW else LONGEST
    longest = min(max(most, len(own)), room)
    row = (own or subject.inputs.row)[:longest]
    return row + subject.inputs.fresh(longest - len(row), salt=longest)
