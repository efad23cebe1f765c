"""Predictions for faults of who may read whom.

Axes: B batch, T query positions of one chunk, S key positions up to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from attncheck.core.errors import Unsupported
from attncheck.faults.engine.hypothesis import Hypothesis
from attncheck.faults.engine.trusted import Allowed, Change, Trusted, View, first_held, promised
from attncheck.judge.config_spec import FULL, Reach
from attncheck.model.forward_spec import ForwardSpec, Mask2D, Mask4D, all_ones, blocks
from attncheck.numerics.divergence import beyond

WINDOW_STEPS = (1, -1, 2, -2)
ReachRule = Callable[[Reach], Reach]


def hypotheses(trusted: Trusted, spec: ForwardSpec) -> Iterator[Hypothesis]:
    """Causality, windows, padding and documents."""
    yield _masked("causal-mask-missing", "", _whole_chunk)
    if trusted.out_of_reach is None and not spec.chunks:
        said = "a boolean mask is added to the scores as 0 and 1"
        yield Hypothesis(
            fault="causal-mask-missing", parameter=said, change=lambda each: Change(added=True)
        )
    for step in (1, -1, 2):
        yield _masked("mask-off-by-one", "" if step == 1 else f"by {step:+d}", _shifted(step))
    if len(spec.chunks) > 1:
        yield _masked("mask-top-left", "", _top_left)
        yield _masked("mask-top-left", "in chunks of several tokens", _top_left_of_many)
    size = trusted.subject.facts.window
    if trusted.out_of_reach is None and trusted.windows(spec):
        yield from _windows(trusted, spec)
    elif size and len(spec.chunks) > 1:
        yield _masked(
            "window-ignored",
            f"the cache keeps a window of {size}, the mask of one forward has none",
            _kept(size),
        )
    yield from _padding(spec) if trusted.out_of_reach is None else _padding_by_argument(spec)
    if trusted.segmented(spec):
        yield replace(
            _masked("document-leak", "", _without_documents),
            holds=lambda path: not masks_ignored(path),
        )


def _masked(fault: str, parameter: str, allowed: Allowed) -> Hypothesis:
    return Hypothesis(fault=fault, parameter=parameter, change=lambda spec: Change(allowed=allowed))


def _whole_chunk(allowed: Tensor, view: View) -> Tensor:
    """Every key that any query of the chunk may read, padding aside."""
    return allowed.any(2, keepdim=True).expand(allowed.shape)


def _shifted(step: int) -> Allowed:
    def shifted(allowed: Tensor, view: View) -> Tensor:
        diagonal = allowed.shape[-1] - allowed.shape[-2]
        causal = torch.ones_like(allowed).tril(diagonal)
        if step < 0:
            return allowed & torch.ones_like(allowed).tril(diagonal + step)
        wider = torch.ones_like(allowed).tril(diagonal + step) & ~causal
        return allowed | (wider & allowed.any(2, keepdim=True))

    return shifted


def _top_left(allowed: Tensor, view: View) -> Tensor:
    """Query i of the chunk reads the first i + 1 of the keys that it is handed: those still held,
    then its own.
    """
    if not view.start:
        return allowed
    first = first_held(view)
    lost = torch.zeros_like(allowed[..., :first])
    return torch.cat([lost, torch.ones_like(allowed[..., first:]).tril()], -1)


def _top_left_of_many(allowed: Tensor, view: View) -> Tensor:
    return _top_left(allowed, view) if allowed.shape[-2] > 1 else allowed


def _windows(trusted: Trusted, spec: ForwardSpec) -> Iterator[Hypothesis]:
    for step in WINDOW_STEPS:
        yield from _reaching(
            spec, "window-off-by-one", "" if step == 1 else f"by {step:+d}", _resized(step)
        )
    yield from _reaching(spec, "window-ignored", "", lambda reach: FULL)
    sizes = trusted.windows(spec)
    if FULL in sizes:
        windowed = next(reach for reach in sizes if reach != FULL)
        yield from _reaching(
            spec, "window-layers-swapped", "", lambda reach: windowed if reach == FULL else FULL
        )
        yield from _reaching(
            spec, "window-layers-swapped", "all layers have the window", lambda reach: windowed
        )


def _reaching(
    spec: ForwardSpec, fault: str, parameter: str, reach: ReachRule
) -> Iterator[Hypothesis]:
    """With a cache that keeps everything, and with one that keeps the promised window only."""
    yield Hypothesis(fault=fault, parameter=parameter, change=lambda spec: Change(reach=reach))
    if len(spec.chunks) > 1:
        said = ", ".join(filter(None, (parameter, "within what the cache keeps")))
        yield Hypothesis(
            fault=fault, parameter=said, change=lambda spec: Change(reach=reach, only_held=True)
        )


def _kept(size: int) -> Allowed:
    """What a cache of this window still holds when a chunk is fed, and the chunk itself."""

    def kept(allowed: Tensor, view: View) -> Tensor:
        first = first_held(replace(view, reach=Reach("sliding", size)))
        return torch.cat([torch.zeros_like(allowed[..., :first]), allowed[..., first:]], -1)

    return kept


def _resized(step: int) -> ReachRule:
    return lambda reach: reach if reach == FULL else Reach(reach.kind, max(1, reach.size + step))


def _padding(spec: ForwardSpec) -> Iterator[Hypothesis]:
    if spec.mask is not None:
        yield Hypothesis(
            fault="attention-mask-ignored",
            change=lambda each: Change(allowed=_causal_only, mask_2d=all_ones(each.tokens)),
            holds=masks_ignored,
        )
    if isinstance(spec.mask, Mask2D) and any(0 in row for row in spec.mask.rows):
        yield _masked("padding-visible", "", _without_padding)
        if len(spec.chunks) > 1:
            yield _masked("padding-visible", "from the second call on", _without_padding_later)
        yield Hypothesis(
            fault="padding-visible",
            parameter="counted as text",
            change=lambda each: Change(allowed=_without_padding, mask_2d=all_ones(each.tokens)),
        )


def _padding_by_argument(spec: ForwardSpec) -> Iterator[Hypothesis]:
    """Where attention is out of reach, the 2D mask itself can say that padding is text."""
    if isinstance(spec.mask, Mask2D) and any(0 in row for row in spec.mask.rows):
        yield Hypothesis(
            fault="padding-visible", change=lambda each: Change(mask_2d=all_ones(each.tokens))
        )


def masks_ignored(trusted: Trusted) -> bool:
    """Whether no form of `attention_mask` that this model takes, 2D or 4D, moves its logits."""
    subject, half = trusted.subject, trusted.subject.inputs.length // 2
    tokens, rest = subject.inputs.tokens, subject.inputs.length - half
    plain_BTV = subject.logits(ForwardSpec(tokens))[:, half:]
    for mask in (Mask2D(((0,) * half + (1,) * rest,)), blocks((half, rest))):
        try:
            masked_BTV = subject.logits(ForwardSpec(tokens, mask=mask))[:, half:]
        except (Unsupported, TypeError, ValueError, RuntimeError):
            continue
        if beyond(masked_BTV, plain_BTV, subject.budget.value):
            return False
    return True


def _rows(view: View, spec: ForwardSpec, like: Tensor) -> Tensor:
    """What another promise allows in the same rows."""
    return promised(spec, view.reach, like.device)[:, :, view.start : view.stop, : view.stop]


def _without_padding(allowed: Tensor, view: View) -> Tensor:
    return _rows(view, replace(view.spec, mask=None, use_cache=True), allowed)


def _without_padding_later(allowed: Tensor, view: View) -> Tensor:
    return _without_padding(allowed, view) if view.start else allowed


def _without_documents(allowed: Tensor, view: View) -> Tensor:
    mask = None if isinstance(view.spec.mask, Mask4D) else view.spec.mask
    return _rows(view, replace(view.spec, mask=mask, use_cache=True), allowed)


def _causal_only(allowed: Tensor, view: View) -> Tensor:
    return _rows(view, replace(view.spec, mask=None, use_cache=True), allowed)
