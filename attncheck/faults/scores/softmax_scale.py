"""What it is
    Scores are multiplied by another scale than the config says: twice, not at all, or by the wrong
    width.

How it looks
    All implementations may agree; the model is much worse than it was, or one implementation
    differs from the others.

Where it comes from
    The query scaled in the module and again in the kernel; a scale flag that one implementation
    ignores; the square root of the hidden size instead of the head's.

What to change
    Apply the scale once, 1/sqrt(head_dim) or what the config says, and pass it to the kernel
    explicitly.

Axes: B batch, H query heads, G key/value heads, T query positions, S key positions, D head width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from attncheck.attention.call import AttentionCall, weights_of
from attncheck.attention.reference import AttentionParams, fitted_scale, params_of
from attncheck.core.errors import Unsupported
from attncheck.faults.engine import (
    Change,
    Fault,
    Hypothesis,
    Injected,
    WrongForward,
    injection,
)
from attncheck.model.subject import Subject

TWICE = 0.5


def inject(subject: Subject) -> Injected:
    """Scale the scores once more, in the current implementation only."""

    def handler(call: AttentionCall) -> Any:
        call.query_BHTD = call.query_BHTD * TWICE
        return call.run()

    return injection.at_own_kernel(subject, handler)


def _hypotheses(forward: WrongForward) -> Iterator[Hypothesis]:
    first = forward.trusted.first_call
    for factor in _factors(forward, first) if first is not None else ():
        yield Hypothesis(f"x {factor:.4g}", change=Change(params=_scaled(factor)))


def _scaled(factor: float) -> Callable[[AttentionParams], AttentionParams]:
    return lambda params: replace(params, scale=params.scale * factor)


def _factors(forward: WrongForward, first: AttentionCall) -> list[float]:
    """The factor between the scale that the kernel applies and the one that it is passed.

    Where weights cannot be read, or a soft-cap bends them, the usual mistakes are tried.
    """
    params = params_of(first, torch.ones(()))
    usual = [params.scale, 1 / params.scale]
    if params.cap is not None:
        return usual
    try:
        factor = _fitted(forward)
    except (Unsupported, RuntimeError):
        return usual
    return [] if factor is None else [factor]


def _fitted(forward: WrongForward) -> float | None:
    """The factor in the first layer, from the weights that its kernel computes; None if it is 1."""
    found: list[float] = []

    def keep(call: AttentionCall) -> None:
        if not found and call.is_self_attention and call.query_BHTD.shape[2] > 2:
            params = params_of(call, torch.ones(()))
            weights_BHTS = weights_of(call).double()
            query_BHTD, key_BGSD = call.query_BHTD.double(), call.key_BGSD.double()
            found.append(fitted_scale(weights_BHTS, query_BHTD, key_BGSD, params)[0] / params.scale)

    with forward.subject.using(forward.spec.attn):
        forward.subject.record_calls(forward.subject.inputs.tokens, keep)
    factor = found[0] if found else math.nan
    return _plain(factor) if math.isfinite(factor) and abs(factor - 1) > 1e-6 else None


def _plain(factor: float) -> float:
    """The factor without its rounding, where it is a plain number: 0.5000000001 is 0.5."""
    rounded = float(f"{factor:.6g}")
    return rounded if math.isclose(rounded, factor, rel_tol=1e-7) else factor


FAULT = Fault(name="softmax-scale", inject=inject, hypotheses={530: _hypotheses})
