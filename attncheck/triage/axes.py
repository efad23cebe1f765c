"""Call patterns as forwards, each sequence compared with the same sequence in one plain forward.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import combinations, product

from attncheck.core.errors import Unsupported
from attncheck.core.measurement import Comparison, verdict_of
from attncheck.core.merging import merged
from attncheck.core.verdict import Verdict
from attncheck.diagnosis.failure import REFUSED
from attncheck.model.cache_kinds import KINDS, promised
from attncheck.model.forward_spec import ForwardSpec, Mask, Mask4D, all_ones, causal, counting
from attncheck.model.inputs import Tokens
from attncheck.model.padding import Padded, Side, pad_id
from attncheck.model.subject import Subject
from attncheck.triage.call_pattern import CallPattern
from attncheck.triage.material import Material

PAD = 5
"""Padding of a batch of equal lengths: longer than a decoding step, not a whole chunk."""
BATCH = 3
IMPLEMENTATIONS = ("eager", "sdpa")
Measure = Callable[[Subject, Material, CallPattern], Comparison]


def values(subject: Subject) -> dict[str, tuple[object, ...]]:
    """The values of each axis that this model supports, without those of one plain forward."""
    can = subject.can
    # a model that reads both ways may answer otherwise in chunks and beside padding, by design
    decodes = bool(can.steps and can.decodes)
    declared = partial(promised, model=subject.model)
    padded = bool(can.mask_2d and can.decodes)
    offered: dict[str, tuple[object, ...]] = {
        "attn": tuple(name for name in IMPLEMENTATIONS if can.kernel and name != subject.attn),
        "schedule": ("steps", *(("chunks",) if can.cache else ())) if decodes else (),
        "cache": ("on", *filter(declared, ("static",))) if decodes else (),
        "padding": (*(("left",) if can.takes_positions else ()), "right") if padded else (),
        "batch": (BATCH,),
        "mask": (
            *(("2d",) if can.mask_2d else ()),
            *(("4d",) if can.mask_4d and can.decodes and not subject.facts.window else ()),
        ),
        "positions": ("explicit",) if can.takes_positions else (),
    }
    return {axis: found for axis, found in offered.items() if found}


def alone(offered: dict[str, tuple[object, ...]], first: tuple[str, ...]) -> list[CallPattern]:
    """Every value of every axis by itself, the axes of `first` before the others."""
    order = [*(axis for axis in first if axis in offered), *(a for a in offered if a not in first)]
    return [CallPattern.of([(axis, value)]) for axis in order for value in offered[axis]]


def crossed(offered: dict[str, tuple[object, ...]]) -> Iterator[CallPattern]:
    """A few call patterns in which every two values of two axes meet at least once."""
    usual = vars(CallPattern())
    choices = ((usual[name], *offered[name]) for name in offered)
    rows = [dict(zip(offered, row, strict=True)) for row in product(*choices)]
    # greedy covering: a full product has hundreds of patterns, all pairs fit into a few
    open_pairs = {pair for row in rows for pair in pairs(row)}
    while open_pairs:
        best = max(rows, key=lambda row: len(open_pairs & pairs(row)))
        open_pairs -= pairs(best)
        yield CallPattern.of(best.items())


def pairs(row: dict[str, object]) -> set[tuple[object, ...]]:
    """Every two values of a call pattern that differ from one plain forward."""
    usual = vars(CallPattern())
    return set(combinations([axis for axis in row.items() if axis[1] != usual[axis[0]]], 2))


def measured(
    subject: Subject,
    material: Material,
    patterns: Iterable[CallPattern],
    measure: Measure | None = None,
) -> Iterator[tuple[CallPattern, Comparison]]:
    """The call patterns that this model supports, each with its case."""
    for pattern in patterns:
        try:
            case = (measure or plain_case)(subject, material, pattern)
        except REFUSED:
            continue
        yield pattern, case


def plain_case(subject: Subject, material: Material, pattern: CallPattern) -> Comparison:
    """One call pattern against each sequence's own plain forward.

    Raises:
        Unsupported: this model does not support the call pattern.
    """
    spec, rows, real = spec_of(subject, material, pattern)
    logits_BTV = subject.logits(spec)
    cases = []
    for index, (row, place) in enumerate(zip(rows, real, strict=True)):
        plain = ForwardSpec((row,))
        got_BTV, want_BTV = logits_BTV[index : index + 1, place], subject.logits(plain)
        cases.append(
            subject.compare(
                str(pattern), got_BTV, want_BTV, offset=place.start or 0, spec=(spec, plain)
            )
        )
    return merged(str(pattern), cases)


def decided(subject: Subject, material: Material, pattern: CallPattern) -> Comparison:
    """`plain_case`, in a higher precision where this one is in doubt."""
    case = plain_case(subject, material, pattern)
    higher = subject.higher_dtype() if case.in_doubt else None
    if higher is None:
        return case
    try:
        with subject.at(higher) as view:
            return plain_case(view, material, pattern)
    except (RuntimeError, NotImplementedError, TypeError):
        return case  # a kernel or quantized weights that refuse it: nothing decides


def fails(case: Comparison) -> bool:
    """Whether a case is beyond rounding in this precision."""
    return verdict_of(case) is Verdict.FAIL and case.resolved


def broken(subject: Subject, material: Material, pattern: CallPattern) -> bool:
    """Whether a call pattern is supported and differs beyond rounding from the plain forward."""
    return any(fails(case) for _, case in measured(subject, material, (pattern,)))


def spec_of(
    subject: Subject, material: Material, pattern: CallPattern
) -> tuple[ForwardSpec, Tokens, tuple[slice, ...]]:
    """The forward of a call pattern, its sequences, and where the real tokens of each are.

    Raises:
        Unsupported: the call pattern means nothing for this model.
    """
    rows = _rows(material, pattern)
    padded = _padded(subject, material, rows) if pattern.padding else None
    side: Side = "left" if pattern.padding == "left" else "right"
    length = padded.length if padded else len(rows[0])
    if pattern.cache not in ("", "on", *KINDS):
        raise Unsupported(f"no kind of cache is called `{pattern.cache}`")
    spec = ForwardSpec(
        padded.tokens(side) if padded else rows,
        chunks=_chunks(pattern, length),
        positions=_positions(subject, pattern, rows, padded, side),
        mask=_mask(pattern, rows, padded, side),
        use_cache=pattern.cache == "on",
        attn=pattern.attn or None,
        cache_kind="" if pattern.cache == "on" else pattern.cache,
    )
    return spec, rows, padded.real(side) if padded else (slice(0, length),) * len(rows)


def _rows(material: Material, pattern: CallPattern) -> Tokens:
    """The sequences of the batch: of unequal lengths with padding, else cut to one length; those
    of the reporter are never cut.
    """
    rows = material.rows[: pattern.batch]
    unequal = len({len(row) for row in rows}) > 1
    if not pattern.padding and unequal and material.whole:
        raise Unsupported("sequences of unequal lengths are a batch only with padding")
    if not pattern.padding:
        shortest = min(len(row) for row in rows)
        return tuple(row[:shortest] for row in rows)
    if unequal or material.whole:
        return rows
    cut = PAD - 2
    return tuple(row[: max(2, len(row) - index * cut)] for index, row in enumerate(rows))


def _padded(subject: Subject, material: Material, rows: Tokens) -> Padded:
    lengths = {len(row) for row in rows}
    length = max(lengths) + (PAD if len(lengths) == 1 else 0)
    pad = pad_id(subject) if material.pad is None else material.pad
    return Padded(rows=rows, length=length, pad=pad, inputs=subject.inputs)


def _chunks(pattern: CallPattern, length: int) -> tuple[int, ...]:
    if not pattern.schedule:
        return ()
    if length < 3:
        raise Unsupported(f"{length} tokens cannot be fed in several chunks")
    if pattern.schedule == "steps":
        steps = min(4, length - 1)
        return (length - steps, *((1,) * steps))
    third = max(1, length // 3)
    return (third, 1, length - third - 1) if length - third > 1 else (third, 1)


def _positions(
    subject: Subject, pattern: CallPattern, rows: Tokens, padded: Padded | None, side: Side
) -> tuple[tuple[int, ...], ...] | None:
    """Left padding comes with positions: without them a forward may count the padding."""
    if pattern.positions == "implicit":
        return None
    if padded is not None and (pattern.positions or side == "left"):
        subject.can.takes_positions.require()
        return padded.positions(side)
    return counting(len(rows), len(rows[0])) if pattern.positions else None


def _mask(pattern: CallPattern, rows: Tokens, padded: Padded | None, side: Side) -> Mask:
    if padded is not None:
        real = padded.mask(side)
        if pattern.mask in ("none", "ones"):
            return None
        if pattern.mask != "4d":
            return real
        return Mask4D(tuple(tuple(1 - each for each in row) for row in real.rows))
    if not pattern.mask:
        return None
    return causal(rows) if pattern.mask == "4d" else all_ones(rows)
