"""Every kind of cache, and what is done to caches between calls.

What it checks
    Decoding on a cache that the caller passes in (dynamic, static, offloaded, quantized) gives the
    logits of one forward. So does decoding after tokens were rolled back, after rows were
    reordered, selected or repeated, and on each copy of a cache that holds a shared prefix. With
    `use_cache=False` a filled cache is still read.

Why it matters
    The usual path never crops, reorders or copies a cache; beam search, assisted decoding and
    prompt caching do nothing else. A static cache is longer than what it holds: a mask or a window
    that sits at the end of the buffer reads the wrong slots and stays finite.

How it measures
    One forward without a cache is the reference. Each kind takes the row in chunks of many, one and
    several tokens; static buffers have slots to spare, few and many, and take a padded batch as
    well. Roll-back: wrong tokens are fed and cropped, as assisted decoding does, twice. Rows: two
    rows in one cache, swapped, one of them kept, each repeated. A prefix is filled once, copied,
    and continued in two ways. A quantized cache is judged by its own precision: keys and values go
    once through its own rounding in a dynamic cache, and it may be no further off than that
    explains.

False alarms
    Models that create a cache of their own kind, and caches that say that they cannot be rolled
    back (recurrent states), are skipped for that case. Where single steps on the model's own cache
    already differ from one forward, `decode-paths` says so, and the reference here is that decode.

References
    Hugging Face transformers documentation, "Caching"; Leviathan et al. 2023 (speculative
    decoding). mlx-examples issue 977.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch

from attncheck.probing import (
    HEADROOM,
    AtMost,
    CallFailed,
    ForwardSpec,
    Mask2D,
    Measurement,
    Probe,
    Subject,
    Unsupported,
    Verdict,
    attempt,
    cache_kinds,
    compare_rows,
    decode_chunks,
    holes,
    left_padded,
    max_abs_diff,
    pad_rows,
    reference_forward,
)
from attncheck_probes.cache_kinds import operations

# Axes: B batch, T positions, V vocabulary.

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
}

RANDOM = "dropout-active"
"""The fault that makes any two computations differ, whatever they are compared with."""


@dataclass(frozen=True, kw_only=True)
class CacheKinds(Probe):
    """Decodes on caches of every kind and handles them as decoding schemes do."""

    name = "cache-kinds"
    title = "every cache, cropped, reordered or copied, gives the logits of one forward"
    needs = ("sees_history", "steps")
    controls = ("cache-crop", "cache-wrong-slot", "cache-layer-mixup", "state-dropped", RANDOM)

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
            name, measured = f"{kind} cache", _exact if kind in EXACT else _approximate
            yield attempt(name, measured, subject, name, kind)
        name = "static cache, left-padded batch"
        yield attempt(name, _static_padded, subject, name)


def _decode(subject: Subject, kind: str) -> ForwardSpec:
    length = subject.inputs.length
    chunks = decode_chunks(subject, length, length // 2)
    return ForwardSpec(subject.inputs.tokens, chunks=chunks, cache_kind=kind)


def _exact(subject: Subject, name: str, kind: str) -> Measurement:
    subject.can.library_cache.require()
    full = reference_forward(subject, subject.inputs.row, subject.inputs.length // 2)
    return subject.compare_forwards(name, _decode(subject, kind), full)


def _approximate(subject: Subject, name: str, kind: str) -> Measurement:
    """A cache that rounds may be no further from one forward than its rounding explains.

    The explanation is measured: a dynamic cache is filled, its contents go once through the same
    storage, and it is continued.
    """
    subject.can.library_cache.require()
    row, half = subject.inputs.row, subject.inputs.length // 2
    want_BTV = operations.wanted(subject, (row,), half)
    got_BTV = subject.logits(_decode(subject, kind))[:, half:]
    store = cache_kinds.new_cache(kind, subject.model, rows=1, length=len(row), dtype=subject.dtype)
    cache = operations.filled(subject, (row[:half],))
    with torch.no_grad(), subject.numerics():
        cache_kinds.send_through(cache, store)
    rounded_BTV = operations.continued(subject, cache, (row[half:],))
    difference, explained = (max_abs_diff(each, want_BTV) for each in (got_BTV, rounded_BTV))
    return AtMost(
        name,
        difference,
        "largest logit difference",
        limit=HEADROOM * max(explained, subject.budget.value),
        broken=Verdict.WARN,
        positions=got_BTV.shape[1],
        nonfinite=holes(got_BTV),
        note=f"one trip through {type(store).__name__} moves the logits by {explained:.2g}",
    )


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
