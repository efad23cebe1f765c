"""Predictions for faults of heads and scores, of rows and of empty rows.

Axes: B batch, H query heads, T query positions, S key positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from attncheck.attention.call import AttentionCall, weights_of
from attncheck.core.errors import Unsupported
from attncheck.faults.engine.hypothesis import Hypothesis
from attncheck.faults.engine.kernel import Scores, is_own_attention, scores_of
from attncheck.faults.engine.trusted import Change, Trusted
from attncheck.judge.layers import watching
from attncheck.model.forward_spec import ForwardSpec, Mask2D


def hypotheses(trusted: Trusted, spec: ForwardSpec) -> Iterator[Hypothesis]:
    """Tiled heads, another scale, no soft-cap, no sinks, NaN where a query may read nothing."""
    if trusted.out_of_reach is not None:
        return
    first = _first_call(trusted)
    if first is None:
        return
    scores = scores_of(first)
    if 1 < first.key_BGSD.shape[1] < first.query_BHTD.shape[1]:
        yield Hypothesis(fault="kv-groups-tiled", change=lambda each: Change(tiled=True))
    if scores.softcap is not None:
        yield _scored("softcap-missing", "", lambda each: replace(each, softcap=None))
    if scores.sinks_H is not None:
        yield _scored("sink-missing", "", lambda each: replace(each, sinks_H=None))
    for factor in _factors(trusted, spec, scores):
        yield _scored("softmax-scale", f"x {factor:.4g}", _scaled(factor))
    if isinstance(spec.mask, Mask2D) and any(0 in row for row in spec.mask.rows):
        yield _scored("nan-masked-row", "", lambda each: replace(each, empty_row=math.nan))


def _scored(fault: str, parameter: str, change: Callable[[Scores], Scores]) -> Hypothesis:
    return Hypothesis(fault=fault, parameter=parameter, change=lambda spec: Change(scores=change))


def _scaled(factor: float) -> Callable[[Scores], Scores]:
    return lambda scores: replace(scores, scale=scores.scale * factor)


def _first_call(trusted: Trusted) -> AttentionCall | None:
    seen: list[AttentionCall] = []

    def watch(call: AttentionCall) -> Any:
        if is_own_attention(call) and not seen:
            seen.append(replace(call, options=dict(call.options)))
        return call.run()

    with watching(trusted.subject, watch), torch.no_grad():
        trusted.subject.passes.call(trusted.subject.inputs.tokens, use_cache=False)
    return seen[0] if seen else None


def _factors(trusted: Trusted, spec: ForwardSpec, scores: Scores) -> list[float]:
    """What the kernel really multiplies by, beside what it is told to; and the usual mistakes where
    that can't be read.
    """
    if scores.softcap is not None:
        return [scores.scale, 1 / scores.scale]
    try:
        fitted = _fitted(trusted, spec)
    except (Unsupported, RuntimeError):
        return [scores.scale, 1 / scores.scale]
    return [fitted] if fitted is not None else []


def _fitted(trusted: Trusted, spec: ForwardSpec) -> float | None:
    """The factor on the first layer's scores, from the weights that its kernel gives: log ratios
    are score differences.
    """
    found: list[float] = []

    def watch(call: AttentionCall) -> Any:
        if not found and is_own_attention(call) and call.query_BHTD.shape[2] > 2:
            found.append(_slope(replace(call, options=dict(call.options))))
        return call.run()

    with trusted.subject.using(spec.attn), watching(trusted.subject, watch), torch.no_grad():
        trusted.subject.passes.call(trusted.subject.inputs.tokens, use_cache=False)
    return (
        _plain(found[0]) if found and math.isfinite(found[0]) and abs(found[0] - 1) > 1e-6 else None
    )


def _slope(call: AttentionCall) -> float:
    """Least squares through the origin over the last query's first keys: d log weight = factor x d
    score.
    """
    weights_BHS = weights_of(call)[:, :, -1].double()
    heads = call.query_BHTD.shape[1]
    key_BHSD = call.key_BGSD.repeat_interleave(heads // call.key_BGSD.shape[1], 1)
    score_BHS = (call.query_BHTD[:, :, -1:] * key_BHSD).sum(-1).double() * scores_of(call).scale
    readable = weights_BHS > torch.finfo(torch.float32).tiny
    pairs = readable[..., 1:] & readable[..., :-1]
    logs = weights_BHS.clamp_min(torch.finfo(torch.float64).tiny).log().diff(dim=-1)[pairs]
    moves = score_BHS.diff(dim=-1)[pairs]
    return float((logs * moves).sum() / (moves * moves).sum()) if bool(pairs.any()) else math.nan


def _plain(factor: float) -> float:
    """The factor without its rounding, where it is a plain number: 0.5000000001 is 0.5."""
    rounded = float(f"{factor:.6g}")
    return rounded if math.isclose(rounded, factor, rel_tol=1e-7) else factor
