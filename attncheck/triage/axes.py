"""Crossing the axes: a pattern becomes a pass, and every row of it is held against the same row on
the trusted path.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product

from torch import Tensor

from attncheck.core.errors import Unsupported
from attncheck.core.finding import Measurement, Verdict, merged, verdict_of
from attncheck.model.cache_kinds import KINDS
from attncheck.model.forward_spec import ForwardSpec, Mask, Mask4D, all_ones, causal, counting
from attncheck.model.inputs import Row, Tokens
from attncheck.model.padding import Padded, Side, pad_id
from attncheck.model.subject import Subject
from attncheck.triage.call_pattern import CallPattern
from attncheck.triage.material import Material

PAD = 5
"""How many slots of padding a row gets where nothing longer stands beside it: more than a step, no
whole chunk.
"""
BATCH = 3
IMPLEMENTATIONS = ("eager", "sdpa")


def values(subject: Subject) -> dict[str, tuple[object, ...]]:
    """What each axis can be set to on this model, the trusted path's own value left out."""
    can = subject.can
    decodes = (
        can.decodes
    )  # what reads both ways by design may answer otherwise in pieces, or beside padding
    left = ("left",) if can.takes_positions and can.reads_mask else ()
    offered: dict[str, tuple[object, ...]] = {
        "attn": tuple(name for name in IMPLEMENTATIONS if name != subject.attn)
        if can.kernel
        else (),
        "schedule": ()
        if not can.steps or not decodes
        else (("steps", "chunks") if can.cache else ("steps",)),
        "cache": () if not can.steps or not decodes else ("on", "static"),
        "padding": () if not can.reads_mask or not decodes else (*left, "right"),
        "batch": (BATCH,),
        "mask": (
            *(("2d",) if can.mask_2d else ()),
            *(("4d",) if can.mask_4d and not subject.facts.window else ()),
        ),
        "positions": ("explicit",) if can.takes_positions else (),
    }
    return {axis: found for axis, found in offered.items() if found}


def alone(offered: dict[str, tuple[object, ...]], first: tuple[str, ...]) -> list[CallPattern]:
    """Every axis moved by itself, those of `first` before the others."""
    order = sorted(
        offered, key=lambda axis: (axis not in first, first.index(axis) if axis in first else 0)
    )
    return [CallPattern.of([(axis, value)]) for axis in order for value in offered[axis]]


def crossed(offered: dict[str, tuple[object, ...]]) -> Iterator[CallPattern]:
    """A few patterns in which every two values of two axes meet at least once."""
    names = list(offered)
    usual = vars(CallPattern())
    rows = [
        dict(zip(names, row, strict=True))
        for row in product(*((usual[name], *offered[name]) for name in names))
    ]
    open_pairs = {pair for row in rows for pair in _pairs(row, usual)}
    while open_pairs:
        best = max(rows, key=lambda row: len(open_pairs & _pairs(row, usual)))
        open_pairs -= _pairs(best, usual)
        yield CallPattern.of(best.items())


def _pairs(row: dict[str, object], usual: dict[str, object]) -> set[tuple[object, ...]]:
    moved = [(name, value) for name, value in row.items() if value != usual[name]]
    return set(combinations(moved, 2))


def measure(subject: Subject, material: Material, pattern: CallPattern) -> Measurement:
    """One pattern against the trusted path: each row's own plain forward.

    Raises:
        Unsupported: this model cannot be asked so.
    """
    spec, rows, real = spec_of(subject, material, pattern)
    logits_BTV = subject.logits(spec)
    cases = [
        _row(subject, pattern, spec, logits_BTV, index, row, real[index])
        for index, row in enumerate(rows)
    ]
    return merged(str(pattern), cases)


def decided(subject: Subject, material: Material, pattern: CallPattern) -> Measurement:
    """`measure`, in a higher precision where this one leaves a doubt."""
    case = measure(subject, material, pattern)
    higher = subject.higher_dtype() if case.in_doubt else None
    if higher is None:
        return case
    try:
        with subject.at(higher) as view:
            return measure(view, material, pattern)
    except (RuntimeError, NotImplementedError, TypeError):
        return case  # a kernel or quantised weights that refuse it: nothing decides


def _row(
    subject: Subject,
    pattern: CallPattern,
    spec: ForwardSpec,
    logits_BTV: Tensor,
    index: int,
    row: Row,
    real: slice,
) -> Measurement:
    usual = ForwardSpec((row,))
    got_BTV, want_BTV = logits_BTV[index : index + 1, real], subject.logits(usual)
    return subject.compare(
        str(pattern), got_BTV, want_BTV, offset=real.start or 0, spec=(spec, usual)
    )


def spec_of(
    subject: Subject, material: Material, pattern: CallPattern
) -> tuple[ForwardSpec, Tokens, tuple[slice, ...]]:
    """The pass of a pattern, the rows in it, and where the real tokens of each are.

    Raises:
        Unsupported: the pattern means nothing for this model.
    """
    rows = _rows(material, pattern)
    padded = _padded(subject, rows) if pattern.padding else None
    side: Side = "left" if pattern.padding == "left" else "right"
    length = padded.length if padded else len(rows[0])
    spec = ForwardSpec(
        padded.tokens(side) if padded else rows,
        chunks=_chunks(pattern, length),
        positions=_positions(subject, pattern, rows, padded, side),
        mask=_mask(pattern, rows, padded, side),
        use_cache=pattern.cache == "on",
        attn=pattern.attn or None,
        cache_kind=_kind(pattern),
    )
    return spec, rows, padded.real(side) if padded else tuple(slice(0, length) for _ in rows)


def _rows(material: Material, pattern: CallPattern) -> Tokens:
    """As many rows as the batch has: cut to one length where nothing pads them, of unequal lengths
    where something does.
    """
    rows = material.rows[: pattern.batch]
    if pattern.padding:
        equal = len({len(row) for row in rows}) == 1
        return tuple(
            row[: max(2, len(row) - index * (PAD - 2))] if equal else row
            for index, row in enumerate(rows)
        )
    shortest = min(len(row) for row in rows)
    return tuple(row[:shortest] for row in rows)


def _padded(subject: Subject, rows: Tokens) -> Padded:
    longest = max(len(row) for row in rows)
    unequal = len({len(row) for row in rows}) > 1
    return Padded(
        rows=rows,
        length=longest if unequal else longest + PAD,
        pad=pad_id(subject),
        inputs=subject.inputs,
    )


def _chunks(pattern: CallPattern, length: int) -> tuple[int, ...]:
    if not pattern.schedule:
        return ()
    if length < 3:
        raise Unsupported(f"{length} tokens cannot be fed in several pieces")
    if pattern.schedule == "steps":
        steps = min(4, length - 1)
        return (length - steps, *((1,) * steps))
    third = max(1, length // 3)
    return (third, 1, length - third - 1) if length - third > 1 else (third, 1)


def _positions(
    subject: Subject, pattern: CallPattern, rows: Tokens, padded: Padded | None, side: Side
) -> tuple[tuple[int, ...], ...] | None:
    """Padding on the left always comes with positions: without them a forward counts the padding,
    and may.
    """
    if padded is not None and (pattern.positions or side == "left"):
        subject.can.takes_positions.require()
        return padded.positions(side)
    return counting(len(rows), len(rows[0])) if pattern.positions else None


def _mask(pattern: CallPattern, rows: Tokens, padded: Padded | None, side: Side) -> Mask:
    if padded is not None:
        real = padded.mask(side)
        return (
            Mask4D(tuple(tuple(1 - each for each in row) for row in real.rows))
            if pattern.mask == "4d"
            else real
        )
    if not pattern.mask:
        return None
    return causal(rows) if pattern.mask == "4d" else all_ones(rows)


def _kind(pattern: CallPattern) -> str:
    if pattern.cache in ("", "on"):
        return ""
    if pattern.cache not in KINDS:
        raise Unsupported(f"no kind of cache is called `{pattern.cache}`")
    return pattern.cache


def fails(case: Measurement) -> bool:
    """Whether a case is beyond rounding, in this precision."""
    return verdict_of(case) is Verdict.FAIL and case.resolved


def pair(
    subject: Subject, material: Material, pattern: CallPattern
) -> tuple[ForwardSpec, ForwardSpec]:
    """The pass of a pattern and the plain one of the row that is farthest from it."""
    case = measure(subject, material, pattern)
    assert case.spec is not None
    got, want = case.spec
    return got, want
