"""States that a call leaves in a cache of any kind, against those of another way to the same token.

A model may hand its states from call to call in tuples, dictionaries or objects of its own, which
no layer is passed by name. What a call of several tokens leaves must be what single steps leave,
and what a step leaves must be what one call over all tokens leaves. The proof is a repair: with
that put in the place of what differs, the failing calls give the right logits.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from attncheck.faults.engine.expected import chunk_bounds
from attncheck.model.caches import CachedTensor, mapped, tensors_of
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.subject import Subject
from attncheck.numerics.divergence import max_abs, max_abs_diff
from attncheck.observation.deviation import Deviation

MOST = 48
"""Longer rows are not walked token by token."""
Reference = Callable[[int], Any]
"""The cache after so many tokens, reached in another way."""


def left_by_calls(
    subject: Subject, spec: ForwardSpec, relative: float
) -> Iterator[tuple[list[Deviation], Tensor]]:
    """For each other way to the same tokens: the states that differ, and the logits_BTV of the
    failing calls with those of the other way put back. Nothing for calls with a mask, positions or
    a cache of their own.
    """
    plain = not spec.mask and spec.positions is None and not spec.cache_kind
    if not plain or len(spec.chunks) < 2 or spec.length > MOST:
        return
    stepped = _stepped(subject, spec) if any(size > 1 for size in spec.chunks) else []
    if stepped:
        yield _repaired(subject, spec, lambda stop: stepped[stop - 1], relative, stepped)
    yield _repaired(
        subject, spec, lambda stop: _call(subject, spec, 0, stop, None)[1], relative, []
    )


def _call(subject: Subject, spec: ForwardSpec, start: int, stop: int, cache: Any) -> Any:
    """(logits_BTV, cache) of one call; the cache that is passed stays as it was."""
    tokens = tuple(row[start:stop] for row in spec.tokens)
    own = None if cache is None else mapped(cache, torch.Tensor.clone)
    with torch.no_grad():
        reply = subject.passes.call(tokens, cache=own, use_cache=True)
    return reply.logits_BTV, reply.cache


def _stepped(subject: Subject, spec: ForwardSpec) -> list[Any]:
    """The cache after each token, fed one by one."""
    found, cache = list[Any](), None
    for at in range(spec.length):
        cache = _call(subject, spec, at, at + 1, cache)[1]
        found.append(mapped(cache, torch.Tensor.clone))
    return found


def _repaired(
    subject: Subject, spec: ForwardSpec, reference: Reference, relative: float, stepped: list[Any]
) -> tuple[list[Deviation], Tensor]:
    parts, found, cache = list[Tensor](), list[Deviation](), None
    for start, stop in chunk_bounds(spec):
        logits_BTV, cache = _call(subject, spec, start, stop, cache)
        parts.append(logits_BTV)
        if stop == spec.length:
            break
        left, right = list(tensors_of(cache)), list(tensors_of(reference(stop)))
        wrong = list(_differing(left, right, relative))
        for index in wrong:
            source = _token_of(stepped, left[index], index, relative)
            found.append(_deviation(right[index], (start, stop), source))
        new = [
            (right if index in wrong else left)[index].tensor.clone() for index in range(len(left))
        ]
        cache = _with(cache, new)
    return found, torch.cat(parts, 1)


def _with(cache: Any, tensors: list[Tensor]) -> Any:
    """A copy of a cache that holds these tensors, in the order of `tensors_of`."""
    new = iter(tensors)
    return mapped(cache, lambda tensor: next(new) if tensor.numel() else tensor)


def _differing(
    left: list[CachedTensor], right: list[CachedTensor], relative: float
) -> Iterator[int]:
    """The numbers of tensors that two caches of one form hold otherwise."""
    if [each.path for each in left] != [each.path for each in right]:
        return
    for number, (one, two) in enumerate(zip(left, right, strict=True)):
        if one.tensor.shape == two.tensor.shape and not _same(one.tensor, two.tensor, relative):
            yield number


def _same(one: Tensor, two: Tensor, relative: float) -> bool:
    return max_abs_diff(one, two) <= relative * max(max_abs(two), 1e-30)


def _token_of(stepped: list[Any], left: CachedTensor, index: int, relative: float) -> int | None:
    """The token after which single steps leave this tensor; None where none does."""
    for token, cache in enumerate(stepped):
        tensors = list(tensors_of(cache))
        like = index < len(tensors) and tensors[index].tensor.shape == left.tensor.shape
        if like and _same(left.tensor, tensors[index].tensor, relative):
            return token
    return None


def _deviation(right: CachedTensor, call: tuple[int, int], source: int | None) -> Deviation:
    start, stop = call
    return Deviation(
        what="state",
        how="another function" if source is None else "other token",
        layer=-1 if right.layer is None else right.layer,
        module=".".join(right.path),
        at=-1 if source is None else stop - 1,
        start=start,
        when="prefill" if not start else "step" if stop - start == 1 else "chunk",
        source=None if source is None else (0, 0, source),
    )
