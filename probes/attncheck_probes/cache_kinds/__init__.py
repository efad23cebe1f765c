"""Every kind of cache, and what is done to caches between calls.

What it checks
    Decoding on a cache that the caller passes in (dynamic, static, offloaded, quantized) gives the
    logits of one forward. So does decoding after tokens were rolled back, after rows were
    reordered, selected or repeated, on a cache that was reset, and on each copy of one that holds a
    shared prefix. With
    `use_cache=False` a filled cache is still read. A buffer that was made in advance takes prompts
    of one token, of a whole window, and of one token less and more.

Why it matters
    The usual path never crops, reorders or copies a cache; beam search, assisted decoding and
    prompt caching do nothing else. A static cache is longer than what it holds: a mask or a window
    that sits at the end of the buffer reads the wrong slots and stays finite.

How it measures
    One forward without a cache is the reference. Each kind takes the row in chunks of many, one and
    several tokens; static buffers have slots to spare, few and many, and take a padded batch as
    well. Roll-back: wrong tokens are fed and cropped, as assisted decoding does, twice: together,
    then one by one. Rows: two
    rows in one cache, swapped, one of them kept, each repeated. A prefix is filled once, copied,
    and continued in two ways. A quantized cache is judged by its own precision: keys and values go
    once through its own rounding in a dynamic cache, and it may be no further off than that
    explains.

False alarms
    A cache of the model's own is rolled back and reordered as it is. Caches that say that they
    cannot be rolled back (recurrent states) are skipped for that case. Where single steps on the
    model's own cache already differ from one forward, `decode-paths` says so, and the reference
    here is that decode.

References
    Hugging Face transformers documentation, "Caching"; Leviathan et al. 2023 (speculative
    decoding). mlx-examples issue 977.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from attncheck.probing import (
    CallFailed,
    Mask2D,
    Measurement,
    Probe,
    Subject,
    Unsupported,
    attempt,
    cache_kinds,
    compare_rows,
    decode_chunks,
    left_padded,
    media_cases,
    pad_rows,
    reference_forward,
)
from attncheck_probes.cache_kinds import operations
from attncheck_probes.cache_kinds.rounding import approximate, decode_on
from attncheck_probes.cache_kinds.short_prompts import short_prompts

# Axes: B batch, T positions, V vocabulary.

HANDLED = ("static", "offloaded", "static offloaded")
"""Kinds on which the operations are repeated: a dynamic cache is what most models make."""
EXACT = ("dynamic", "static", "long static", "offloaded", "static offloaded")
OPERATIONS: dict[str, Callable[[Subject, str], Measurement]] = {
    "tokens rolled back": operations.rolled_back,
    "rows turned round": partial(operations.rows_moved, how="reorder_cache", index=(1, 0)),
    "one row kept": partial(operations.rows_moved, how="batch_select_indices", index=(1,)),
    "rows repeated": partial(
        operations.rows_moved, how="batch_repeat_interleave", index=(0, 0, 1, 1)
    ),
    "a prefix continued in two ways": operations.prefix_shared,
    "read with `use_cache=False`": operations.unstored,
    "reset and filled again": operations.emptied,
}

RANDOM = "dropout-active"
"""The fault that makes any two computations differ, whatever they are compared with."""


@dataclass(frozen=True, kw_only=True)
class CacheKinds(Probe):
    """Decodes on caches of every kind and handles them as decoding schemes do."""

    name = "cache-kinds"
    title = "every cache, cropped, reordered or copied, gives the logits of one forward"
    needs = ("sees_history", "steps")
    controls = (
        "cache-crop",
        "cache-wrong-slot",
        "cache-layer-mixup",
        "state-dropped",
        "static-crop",
        "static-reorder",
        "short-prompt-lost",
        RANDOM,
    )

    kinds: tuple[str, ...] = (*EXACT, "quantised")

    def measure(self, subject: Subject) -> Iterator[Measurement]:
        """The operations, a roll-back first, then the kinds of caches."""
        if {*subject.passes.injected} - {RANDOM} and not subject.can.steps_agree:
            raise Unsupported(
                f"{subject.can.steps_agree.reason}; a fault would change the reference as well"
            )
        for name, operation in OPERATIONS.items():
            yield attempt(name, operation, subject, name)
        for kind in self.kinds:
            name, measured = f"{kind} cache", _exact if kind in EXACT else approximate
            yield attempt(name, measured, subject, name, kind)
        yield from _handled(subject, [kind for kind in self.kinds if kind in HANDLED])
        name = "static cache, left-padded batch"
        yield attempt(name, _static_padded, subject, name)
        yield from media_cases.static_cache(subject)


def _handled(subject: Subject, kinds: list[str]) -> Iterator[Measurement]:
    """Buffers that hold every token exactly, rolled back, reordered, and behind short prompts."""
    for kind in kinds:
        for what, measured in {
            "tokens rolled back": partial(operations.rolled_back, kind=kind),
            "rows turned round": partial(
                operations.rows_moved, how="reorder_cache", index=(1, 0), kind=kind
            ),
            "short prompts": partial(short_prompts, kind=kind),
        }.items():
            name = f"{kind} cache, {what}"
            yield attempt(name, measured, subject, name)


def _exact(subject: Subject, name: str, kind: str) -> Measurement:
    subject.can.library_cache.require()
    full = reference_forward(subject, subject.inputs.row, subject.inputs.length // 2)
    return subject.compare_forwards(name, decode_on(subject, kind), full)


def _static_padded(subject: Subject, name: str) -> Measurement:
    """A padded batch decoded on a static cache against the same on the model's own cache."""
    (subject.can.library_cache & subject.can.mask_2d).require()
    batch, length = pad_rows(subject), subject.inputs.length
    usual = left_padded(subject, batch, chunks=decode_chunks(subject, length, length - 3))
    static = replace(usual, cache_kind="static")
    try:
        return compare_rows(subject, batch, name, static, usual)
    except CallFailed:
        # generate() of some models makes the mask as long as the buffer
        assert isinstance(static.mask, Mask2D)
        rows = tuple(row + (0,) * cache_kinds.SPARE for row in static.mask.rows)
        static = replace(static, mask=Mask2D(rows))
        return compare_rows(subject, batch, name, static, usual)
