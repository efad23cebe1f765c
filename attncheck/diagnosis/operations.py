"""A failure that nothing names: the operation of the model's own code where it parts from one
forward over the same tokens, proven by putting that forward's values there.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from attncheck.attention.layers import layer_number
from attncheck.core.finding import Diagnosis, Finding, Location
from attncheck.core.observed_part import ObservedPart
from attncheck.diagnosis.claims import MENDED
from attncheck.diagnosis.failure import REFUSED, Failure, FailureSide, max_diff_at
from attncheck.diagnosis.replay import replay_of
from attncheck.model.forward_spec import ForwardSpec, Mask2D
from attncheck.model.subject import Subject
from attncheck.numerics.divergence import max_abs
from attncheck.observation.observe import BUDGETS, ROUNDINGS
from attncheck.observation.operations import Alignment, Place, TooLarge
from attncheck.observation.parting import Comparing, Parting
from attncheck.observation.sequence import Sequence
from attncheck.observation.summary import ranges
from attncheck.report.numbers import number

PADDING, ROWS, LATER = "the padding beside them", "another row of the batch", "a later token"
FAMILIES = {PADDING: "padding-visible", ROWS: "rows-mixed", LATER: "causal-mask-missing", "": ""}


@final
@dataclass(frozen=True)
class _Pair:
    """The calls of one side, of which `part` is looked at, and one forward over the same tokens,
    perhaps with more behind them.
    """

    subject: Subject
    side: FailureSide
    part: Sequence
    one: ForwardSpec

    @property
    def right_BTV(self) -> Tensor:
        """The logits of the one forward, for the tokens that both have."""
        return self.subject.logits(self.one)[:, : self.part.last - self.part.first]

    @property
    def beside(self) -> str:
        """What the batch, or the one forward, has beside the tokens of the part."""
        if self.one.length > self.part.last - self.part.first:
            return LATER
        if self.part.last - self.part.first < self.side.spec.length:
            return PADDING
        return ROWS if len(self.side.spec.tokens) > 1 else ""

    def residual(self, logits_BTV: Tensor) -> float:
        """How far logits, as the side observes them, are from the right ones."""
        if self.side.columns is None:
            return max_diff_at(self.part.states(logits_BTV), self.right_BTV)
        return max_diff_at(logits_BTV, self.side.kept(self.right_BTV))

    def align(self, sizes: tuple[int, ...]) -> Alignment:
        """The tokens of the one forward in calls of so many tokens."""
        rows = len(self.side.spec.tokens)
        return Alignment(self.one.length, self.part.row, rows, self.part.first, sizes)


NAMELESS = ("unexplained", "repaired")
"""Diagnoses that leave open what is wrong."""


@final
@dataclass(frozen=True)
class Attempt:
    """What the search made of one failing case; `refused` is what ended it early."""

    failure: Failure
    explained: Finding
    refused: Exception | None = None

    @classmethod
    def of(cls, failure: Failure, finding: Finding, explain: Callable[[], Finding]) -> Attempt:
        """What `explain` makes of a finding, and the exception if it raises one."""
        try:
            return cls(failure, explain())
        except REFUSED as reason:
            open_end = Diagnosis(fault="", how="unexplained")
            return cls(failure, replace(finding, diagnosis=open_end), reason)

    def or_parted(self) -> Finding:
        """The finding; where that leaves open what is wrong, with the operation where the failing
        calls part from one forward.

        Raises what ended the search early, if no operation is found.
        """
        found = self.explained.diagnosis
        apart = parted(self.failure) if found is not None and found.how in NAMELESS else None
        if found is not None and apart is not None:
            diagnosis, place = apart
            return replace(
                self.explained,
                diagnosis=replace(diagnosis, ruled_out=found.ruled_out),
                location=_closer(self.explained.location, place),
                replay={**self.explained.replay, **replay_of(self.failure)},
            )
        if self.refused is not None:
            raise self.refused
        return self.explained


def _closer(known: Location | None, place: Location) -> Location:
    """The place that was known, with the line of code, where it is within the module."""
    if known is None or not f"{known.module}.".startswith(f"{place.module}."):
        return place
    return replace(known, source=place.source)


def parted(failure: Failure) -> tuple[Diagnosis, Location] | None:
    """The operation that makes the difference, and its place; None where none is found."""
    try:
        for pair in _pairs(failure):
            if pair.residual(pair.side.observed_BTV) <= failure.budget:
                continue
            found = _found(failure, pair)
            if found is not None:
                return _said(*found, pair)
    except (*REFUSED, TooLarge):
        return None
    return None


def _pairs(failure: Failure) -> Iterator[_Pair]:
    """Each side, the wrong ones first, against one plain forward of its sequence; and a row that
    the other side has with more tokens behind.
    """
    got, want = failure.sides
    for side in sorted(failure.sides, key=lambda side: not side.wrong):
        rows = failure.failing_rows() if side is got else [*range(len(side.spec.tokens))]
        part = Sequence.of(side.spec, rows[0])
        yield _Pair(failure.subject, side, part, _plain(part, side.spec))
    longer, shorter = want.spec.tokens, got.spec.tokens
    if len(longer) == len(shorter) == 1 and longer[0][: len(shorter[0])] == shorter[0]:
        part = Sequence.of(want.spec, 0)
        yield _Pair(failure.subject, got, Sequence.of(got.spec, 0), _plain(part, want.spec))


def _plain(part: Sequence, spec: ForwardSpec) -> ForwardSpec:
    """One forward of the sequence alone; with a mask of ones where the batch has one."""
    alone = replace(part.alone(spec), chunks=(), use_cache=False, cache_kind="")
    shown = Mask2D(((1,) * alone.length,))
    return replace(alone, mask=shown) if isinstance(spec.mask, Mask2D) else alone


def _found(failure: Failure, pair: _Pair) -> tuple[Parting, float] | None:
    subject, side = failure.subject, pair.side
    size = max_abs(pair.right_BTV)
    eps = ROUNDINGS * torch.finfo(subject.dtype).eps
    comparing = Comparing(
        model=subject.model,
        good=lambda: subject.passes.replay(pair.one),
        bad=lambda: side.run(subject),
        relative=max(eps, BUDGETS * failure.budget / max(size, 1e-30)),
        align=pair.align,
    )

    def residual(places: tuple[Place, ...]) -> float:
        try:
            return pair.residual(comparing.mended(places, lambda: side.again(subject)))
        except REFUSED:
            return float("inf")

    return comparing.found(residual, failure.budget)


def _said(found: Parting, residual: float, pair: _Pair) -> tuple[Diagnosis, Location]:
    module, beside = found.modules[0], pair.beside if found.certain else ""
    text = sentence(found, residual, beside)
    layers = (layer_number(each) for each in found.modules)
    part = ObservedPart(
        what="hidden",
        how="another function",
        layers=tuple(sorted({each for each in layers if each is not None})),
        positions=found.tokens,
        amount=found.difference,
        text=text,
    )
    diagnosis = Diagnosis(
        fault="",
        how="measured",
        residual=residual,
        advice=text,
        sentence=text,
        family=FAMILIES[beside],
        parts=(part,),
    )
    if found.unseen:
        module = found.unseen[-1][0] or module  # which runs what one forward does not
    first = found.tokens[0] if found.tokens else None
    place = Location(
        module=module,
        layer=layer_number(module),
        query_position=first,
        source=found.place.source,
    )
    return diagnosis, place


def sentence(found: Parting, residual: float, beside: str = "") -> str:
    """What differs where, what it was made from, and the proof; `beside` is what else stands in the
    batch.
    """
    module = found.modules[0] or "the model's forward"
    others = f" and {len(found.modules) - 1} more" if len(found.modules) > 1 else ""
    when = ", in calls on a cache" if found.calls and found.calls[0] else ""
    named = "token" if len(found.tokens) == 1 else "tokens"
    tokens = f" at {named} {ranges(found.tokens)}" if found.tokens else ""
    name = f"{Path(found.place.code.co_filename).name}:{found.place.line}"
    first = (
        f"In {module}{others} `{found.place.text}` ({name}) gives other values than in one forward"
        f"{tokens}, by up to {number(found.difference)}{when}"
    )
    reads = f": {beside} takes part" if beside else ""
    proof = f"{MENDED}, to {number(residual)}."
    return f"{first}{_made_by(found)}{reads}. {proof}"


def _made_by(found: Parting) -> str:
    if not found.unseen:
        if found.certain:
            return ", though what goes in for them is the same"
        return ": the first result that both have in one shape"
    module, last, _ = found.unseen[-1]
    lines = sorted({place.line for _, place, _ in found.unseen if place.code is last.code})
    where = f"{'line' if len(lines) == 1 else 'lines'} {ranges(lines)}"
    home = "" if module == found.modules[0] else f" in {module or 'the model'}"
    return (
        f"; what goes in was made by `{last.text}`{home} ({where}), which one forward does not run"
    )
