"""Why a call differs from each sequence alone although nothing is wrong: what the call requests.

Each reason is shown by running the call without it: right where padding is on the other side, where
positions are passed, or where nothing but the cache's own rounding is left.

Axes: B batch, G key/value heads, S cached positions, D head width, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from attncheck.core.measurement import Comparison
from attncheck.diagnosis.failure import REFUSED
from attncheck.model.cache_kinds import new_cache, send_through
from attncheck.model.caches import KEYS, key_values
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.subject import Subject
from attncheck.numerics.budget import HEADROOM
from attncheck.numerics.divergence import max_abs_diff
from attncheck.triage import axes
from attncheck.triage.answer import Remark
from attncheck.triage.encoder_call import reads_prompts
from attncheck.triage.own_call import OwnCall

LOSSY = ("quantised",)
"""Kinds of caches that round what they store."""
OUTLIER = 8.0
"""A channel this many times larger than the usual one costs every other channel precision."""


def explained(subject: Subject, call: OwnCall, case: Comparison) -> Remark | None:
    """The reason why a failing call is as expected, shown by a run without it; None for a fault."""
    if reads_prompts(subject):
        return None
    for reason in (_unmasked, _on_the_right, _counted_padding, _rounding_cache):
        try:
            found = reason(subject, call, case)
        except REFUSED:
            continue
        if found is not None:
            return found
    return None


def _agrees(subject: Subject, call: OwnCall) -> bool:
    return not axes.fails(call.case(subject))


def _unmasked(subject: Subject, call: OwnCall, case: Comparison) -> Remark | None:
    """Padding that nobody hides, alone or with another reason."""
    if call.pattern.mask not in ("none", "ones"):
        return None
    masked = call.with_mask()
    left = masked.case(subject)
    other = explained(subject, masked, left) if axes.fails(left) else None
    if axes.fails(left) and other is None:
        return None
    title, passed = "no `attention_mask` is passed", "no `attention_mask`"
    if call.pattern.mask == "ones":
        title, passed = "the `attention_mask` is all ones", "an `attention_mask` of ones"
    return Remark(
        title=title + (f"; {other.title}" if other else ""),
        words=f"The padding of the batch is read like text, since the call passes {passed}: "
        f"the logits move by {case.max_abs:.2g}, and by {left.max_abs:.2g} with that of the "
        f"tokenizer. Pass the tokenizer's `attention_mask`.{f' {other.words}' if other else ''}",
        decides=True,
    )


def _on_the_right(subject: Subject, call: OwnCall, case: Comparison) -> Remark | None:
    """generate() continues behind the padding in every row but the longest."""
    if not call.generate or call.side != "right" or not _agrees(subject, call.padded("left")):
        return None
    lengths = [len(row) for row in call.rows]
    return Remark(
        title="padding on the right of a prompt",
        words=f"The prompts have {min(lengths)} to {max(lengths)} tokens and are padded on the "
        "right: generate() then continues after the padding in every sequence but the longest "
        f"(the logits move by {case.max_abs:.2g}; padded on the left they agree). "
        "Set tokenizer.padding_side = 'left'.",
        decides=True,
    )


def _counted_padding(subject: Subject, call: OwnCall, case: Comparison) -> Remark | None:
    """A forward without positions numbers the padding as well."""
    if call.pattern.positions != "implicit" or not subject.can.takes_positions:
        return None
    if not _agrees(subject, call.explicit()):
        return None
    return Remark(
        title="padding is counted where no `position_ids` are passed",
        words="forward() of this model numbers the padding too, so left-padded sequences start at "
        f"a later position: the logits move by {case.max_abs:.2g}, and agree once positions are "
        "passed. Pass position_ids=(attention_mask.cumsum(-1) - 1).clamp(min=0), as generate() "
        "does.",
        decides=True,
    )


def _rounding_cache(subject: Subject, call: OwnCall, case: Comparison) -> Remark | None:
    """A cache that rounds what it stores may be as far off as its own rounding, and no further."""
    kind = call.pattern.cache
    if kind not in LOSSY:
        return None
    exact = replace(call, pattern=replace(call.pattern, cache="dynamic"))
    if not _agrees(subject, exact):
        return None
    loss, outliers = _loss(subject, call, kind)
    if case.max_abs > HEADROOM * max(loss, case.budget):
        return None
    reason = f" {outliers}" if outliers else ""
    return Remark(
        title=f"a {kind} cache rounds what it stores",
        words=f"Keys and values that go once through its storage move the logits by {loss:.2g}, "
        f"the reported call by {case.max_abs:.2g}; on a dynamic cache it agrees.{reason} Keep "
        "more recent tokens unquantized, use more bits, or a dynamic cache.",
        decides=True,
    )


def _loss(subject: Subject, call: OwnCall, kind: str) -> tuple[float, str]:
    """The largest difference that one trip through the storage makes, and outlier channels."""
    worst, words = 0.0, ""
    for row in call.rows:
        cut = max(1, len(row) - 4)
        cache = subject.passes.cache(ForwardSpec((row[:cut],), use_cache=True))
        words = words or "; ".join(_outliers(cache))
        store = new_cache(kind, subject.model, rows=1, length=len(row), dtype=subject.dtype)
        with torch.no_grad(), subject.numerics():
            send_through(cache, store, cut)
        rest = tuple(row[cut:]) or row[-1:]
        with torch.no_grad():
            output = subject.passes.call((rest,), cache=cache, use_cache=True)
        want_BTV = subject.logits(ForwardSpec((row,)))[:, cut:]
        worst = max(worst, max_abs_diff(output.logits_BTV, want_BTV))
    return worst, words


def _outliers(cache: object) -> Iterator[str]:
    """The first layer whose keys have channels far larger than the others."""
    for each in key_values(cache):
        if each.name not in KEYS:
            continue
        sizes = each.tensor.abs().amax((0, 2)).flatten()
        usual = sizes.median()
        large = (sizes > OUTLIER * usual).nonzero().flatten()
        if len(large):
            yield (
                f"Keys of layer {each.layer} have outlier channels: "
                f"{_channels(large, each.tensor)} up to {float(sizes.max() / usual):.0f} times the "
                "usual size, so that one scale for all leaves the others few levels."
            )
            return


def _channels(large: Tensor, keys_BGSD: Tensor) -> str:
    width = keys_BGSD.shape[-1]
    places = [f"head {int(at) // width} channel {int(at) % width}" for at in large[:3]]
    return ", ".join(places) + (" and others" if len(large) > 3 else "")
