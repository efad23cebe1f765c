"""Every kind of cache, and what is done to caches between calls.

What it checks
    Decoding on a cache that is handed in (dynamic, static, offloaded, quantised) gives the logits
    of one forward. So does decoding after tokens were rolled back, after rows were reordered,
    selected or repeated, and on each copy of a cache that holds a shared prefix. With
    `use_cache=False` a filled cache is read all the same.

Why it matters
    The usual path never crops, reorders or copies a cache; beam search, assisted decoding and
    prompt caching do nothing else. A static cache is longer than what it holds: a mask or a window
    that sits at the end of the buffer reads the wrong slots and stays finite.

How it measures
    One forward without a cache is the yardstick. Each kind takes the row in pieces of many, one and
    several tokens; static buffers have slots to spare, few and many, and take a padded batch as
    well. Roll-back: wrong tokens are fed and cropped, as assisted decoding does, twice. Rows: two
    rows in one cache, turned round, one of them kept, each repeated. A prefix is filled once,
    copied, and continued in two ways. A quantised cache is judged by its own precision: keys and
    values are sent once through its own rounding in a dynamic cache, and it may be no further off
    than that explains.

False alarms
    Models that make a cache of their own kind, and caches that say that they cannot be rolled back
    (recurrent states), are skipped for that case. Where single steps on the model's own cache
    differ from one forward already, `decode-paths` says so, and the yardstick here is that decode.

References
    Hugging Face transformers documentation, "Caching"; Leviathan et al. 2023 (speculative
    decoding). mlx-examples issue 977.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, final

import torch
from torch import Tensor

from attncheck.probing import (
    Cause,
    ForwardSpec,
    Measurement,
    Probe,
    Row,
    Subject,
    Unsupported,
    approximate,
    attempt,
    cache_kinds,
    continued,
    filled,
    max_abs_diff,
    merged,
    pad_rows,
    pieces,
    unstored,
    yardstick,
)

# Axes: B batch, T positions, V vocabulary.

EXACT = ("dynamic", "static", "long static", "offloaded", "static offloaded")
ROLLED_BACK = 3


@final
@dataclass(frozen=True, kw_only=True)
class CacheKinds(Probe):
    """Decodes on caches of every kind and handles them as decoding schemes do."""

    name: ClassVar[str] = "cache-kinds"
    title: ClassVar[str] = (
        "every cache, cropped, reordered or copied, gives the logits of one forward"
    )
    needs: ClassVar[tuple[str, ...]] = ("sees_history", "steps")
    controls: ClassVar[tuple[str, ...]] = (
        "cache-crop",
        "cache-wrong-slot",
        "cache-layer-mixup",
        "state-dropped",
    )

    kinds: tuple[str, ...] = (*EXACT, "quantised")

    def measure(self, subject: Subject) -> Iterator[Measurement]:
        """The operations, a roll-back first, then the kinds of caches."""
        if subject.passes.injected and not subject.can.steps_agree:
            raise Unsupported(
                f"{subject.can.steps_agree.reason}; a fault would change the yardstick as well"
            )
        operations: dict[str, Callable[[Subject, str], Measurement]] = {
            "tokens rolled back": _rolled_back,
            "rows turned round": partial(_rows, how="reorder_cache", index=(1, 0)),
            "one row kept": partial(_rows, how="batch_select_indices", index=(1,)),
            "rows repeated": partial(_rows, how="batch_repeat_interleave", index=(0, 0, 1, 1)),
            "a prefix continued in two ways": _prefix,
            "read with `use_cache=False`": unstored,
        }
        for name, operation in operations.items():
            yield attempt(name, operation, subject, name, may_refuse=True)
        for kind in self.kinds:
            name = f"{kind} cache"
            yield attempt(
                name, _kind if kind in EXACT else approximate, subject, name, kind, may_refuse=True
            )
        name = "static cache, left-padded batch"
        yield attempt(name, _static_padded, subject, name, may_refuse=True)


def _kind(subject: Subject, name: str, kind: str) -> Measurement:
    spec = ForwardSpec(
        subject.inputs.tokens,
        chunks=pieces(subject, subject.inputs.length, subject.inputs.length // 2),
        cache_kind=kind,
    )
    full = yardstick(subject, subject.inputs.row, subject.inputs.length // 2)
    return subject.compare(name, subject.logits(spec), subject.logits(full), spec=(spec, full))


def _static_padded(subject: Subject, name: str) -> Measurement:
    """A padded batch decoded on a static cache against the same on the model's own, where the real
    tokens are.
    """
    subject.can.reads_mask.require()
    batch, length = pad_rows(subject), subject.inputs.length
    usual = batch.spec(
        "left",
        salt=1,
        explicit=bool(subject.can.takes_positions),
        chunks=pieces(subject, length, length - 3),
    )
    spec, cases = (replace(usual, cache_kind="static"), usual), []
    got_BTV, want_BTV = (subject.logits(each) for each in spec)
    for row, real in enumerate(batch.real("left")):
        pair = (got_BTV[row : row + 1, real], want_BTV[row : row + 1, real])
        cases.append(subject.compare(name, *pair, offset=real.start, spec=spec))
    return merged(name, cases)


def _rolled_back(subject: Subject, name: str) -> Measurement:
    """Two rounds of candidates: wrong ones are fed after the prefix and cropped, then real ones
    follow.
    """
    subject.can.steps_agree.require()
    inputs, half = subject.inputs, subject.inputs.length // 2
    cache = cache_kinds.new_cache(
        "dynamic", subject.model, rows=1, length=inputs.length, dtype=subject.dtype
    )
    cache_kinds.may_crop(cache)
    continued(subject, cache, (inputs.row[:half],))
    start, parts = half, []
    for stop in (half + 1, inputs.length):
        continued(subject, cache, (inputs.fresh(ROLLED_BACK, salt=21),))
        cache_kinds.crop(cache, ROLLED_BACK)
        parts.append(continued(subject, cache, (inputs.row[start:stop],)))
        start = stop
    want_BTV = subject.logits(yardstick(subject, inputs.row, half))[:, half:]
    case = subject.compare(
        name,
        torch.cat(parts, 1),
        want_BTV,
        offset=half,
        note=f"{ROLLED_BACK} tokens cropped, twice",
    )
    return _named(subject, case, torch.cat(parts, 1), half) if case.beyond else case


def _named(subject: Subject, case: Measurement, got_BTV: Tensor, half: int) -> Measurement:
    """The case with the fault that reproduces it: a crop that leaves some of the rejected tokens in
    the cache.
    """
    row, rejected = subject.inputs.row, subject.inputs.fresh(ROLLED_BACK, salt=21)
    for left in range(1, ROLLED_BACK + 1):
        kept = rejected[:left]
        whole_BTV = subject.logits(
            ForwardSpec(((*row[:half], *kept, row[half], *kept, *row[half + 1 :]),))
        )
        first, rest = half + left, half + 2 * left + 1
        predicted_BTV = torch.cat([whole_BTV[:, first : first + 1], whole_BTV[:, rest:]], 1)
        residual = max_abs_diff(predicted_BTV, got_BTV)
        if residual <= subject.budget.value:
            return replace(case, cause=Cause("cache-crop", residual))
    return case


def _rows(subject: Subject, name: str, how: str, index: Row) -> Measurement:
    """Rows of one cache moved by what beam search calls; each goes on as the row that it now is."""
    half = subject.inputs.length // 2
    rows = (subject.inputs.row, subject.inputs.other(subject.inputs.row, salt=22))
    cache = filled(subject, tuple(row[:half] for row in rows))
    cache_kinds.rearrange(cache, how, index, subject.passes.device)
    wanted = tuple(rows[i] for i in index)
    got_BTV = continued(subject, cache, tuple(row[half:] for row in wanted))
    want_BTV = torch.cat(
        [subject.logits(yardstick(subject, row, half))[:, half:] for row in wanted]
    )
    return subject.compare(name, got_BTV, want_BTV, offset=half, note=f"`{how}`")


def _prefix(subject: Subject, name: str) -> Measurement:
    """One prefix filled once; two copies of its cache, each continued with its own text, then the
    original once more.
    """
    half, row = subject.inputs.length // 2, subject.inputs.row
    shared = filled(subject, (row[:half],))
    cases = []
    for salt, cache in (
        (23, cache_kinds.copied(shared)),
        (24, cache_kinds.copied(shared)),
        (0, shared),
    ):
        whole = subject.inputs.other(row, half, salt=salt) if salt else row
        got_BTV = continued(subject, cache, (whole[half:],))
        cases.append(
            subject.compare(
                name,
                got_BTV,
                subject.logits(yardstick(subject, whole, half))[:, half:],
                offset=half,
            )
        )
    return merged(name, cases)
