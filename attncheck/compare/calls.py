"""The calls that two models are compared in: those of `run` that both take, on inputs that cross
every border of both.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.errors import TargetError
from attncheck.model.cache_kinds import promised
from attncheck.model.forward_spec import ForwardSpec, Mask4D
from attncheck.model.inputs import Tokens
from attncheck.model.padding import Padded
from attncheck.model.subject import Subject

Call = tuple[str, ForwardSpec]
PLAIN, CHUNKED, PADDED = "one forward", "in chunks on a cache", "left-padded batch"
SHORTER = 3
"""How many tokens the second sequence of a padded batch is shorter."""
SWITCHED = ("eager", "sdpa")
FEW_CUTS = 6


def shared_rows(one: Subject, other: Subject) -> Tokens:
    """Two rows of tokens that both vocabularies hold, long enough for the borders of both.

    Raises:
        TargetError: no row of one side lies in the vocabulary of the other.
    """
    vocab = min(one.facts.vocab, other.facts.vocab)
    for side in sorted((one, other), key=lambda each: -each.inputs.length):
        row = side.inputs.row
        rows = (row, side.inputs.other(row, salt=31)[SHORTER:])
        if max(map(max, rows)) < vocab:
            return rows
    name = min((one, other), key=lambda each: each.facts.vocab).name
    raise TargetError(f"{name}: the tokens are outside its vocabulary of {vocab}")


def quick_calls(subject: Subject, rows: Tokens, pad: int) -> Iterator[Call]:
    """One forward, chunks on a cache, and a left-padded batch, as far as the model takes them."""
    row = rows[0]
    third = max(1, len(row) // 3)
    yield PLAIN, ForwardSpec((row,))
    if subject.can.steps:
        several = subject.can.cache and len(row) > third + 1
        chunks = (third, 1, len(row) - third - 1) if several else (len(row) - 1, 1)
        yield CHUNKED, ForwardSpec((row,), chunks=chunks)
    if len(rows) > 1 and subject.can.mask_2d and subject.can.takes_positions:
        yield PADDED, _batch(subject, rows, pad).spec("left", explicit=True)


def _batch(subject: Subject, rows: Tokens, pad: int) -> Padded:
    return Padded(rows=rows, length=max(map(len, rows)) + 1, pad=pad, inputs=subject.inputs)


def more_calls(one: Subject, other: Subject, rows: Tokens, pad: int) -> Iterator[Call]:
    """Every further call that both models take."""
    row, both = rows[0], (one, other)
    short = min(map(len, rows))
    yield "batch of two", ForwardSpec(tuple(each[:short] for each in rows))
    if all(each.can.steps for each in both):
        first = max(1, len(row) // 3)
        steps = (first, *(1,) * (len(row) - first))
        yield "prefill, then steps", ForwardSpec((row,), chunks=steps)
        yield "steps from the first token on", ForwardSpec((row,), chunks=(1,) * len(row))
    if all(each.can.steps and each.can.cache for each in both):
        for cut in _cuts(both, len(row)):
            yield (
                f"in chunks {cut}+{len(row) - cut}",
                ForwardSpec((row,), chunks=(cut, len(row) - cut)),
            )
    if all(each.can.steps and each.can.library_cache for each in both) and all(
        promised("static", each.model) for each in both
    ):
        third = max(1, len(row) // 3)
        parts = (third, 1, len(row) - third - 1)
        yield "on a static cache", ForwardSpec((row,), chunks=parts, cache_kind="static")
    if all(each.can.mask_2d for each in both):
        batch = _batch(one, rows, pad)
        yield "right-padded batch", batch.spec("right")
        if all(each.can.takes_positions and each.can.steps for each in both):
            chunks = (batch.length - 4, 1, 1, 1, 1)
            yield "left-padded batch, then steps", batch.spec("left", explicit=True, chunks=chunks)
    if all(each.can.mask_4d and each.can.takes_positions for each in both):
        yield "packed rows", packed(row)
    for attn in SWITCHED:
        if all(str(each.attn) in SWITCHED and each.attn != attn for each in both):
            yield f"one forward, {attn}", ForwardSpec((row,), attn=attn)


def packed(row: tuple[int, ...]) -> ForwardSpec:
    """Two documents in one row, each with its own positions, and a 4D mask between them."""
    first = len(row) // 2
    second = len(row) - first
    positions = (*range(first), *range(second))
    segments = ((0,) * first + (1,) * second,)
    return ForwardSpec((row,), positions=(positions,), mask=Mask4D(segments))


def _cuts(both: tuple[Subject, Subject], length: int) -> list[int]:
    """Cuts on both sides of the borders of both models, a few at most."""
    found = sorted({cut for each in both for cut in each.inputs.cuts if 0 < cut < length})
    stride = -(-len(found) // FEW_CUTS)
    return found[::stride] if found else []
