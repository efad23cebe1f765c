"""One layer's attention read by effect: which rows of which weight each head comes from, how it was
rotated, and what the kernel did with it.

Axes: B batch, T positions, S keys, H query heads, G key/value heads, N blocks of D channels,
D head width, R rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attncheck.attention.call import AttentionCall
from attncheck.attention.masks import allowed_BHTS, bias_of
from attncheck.compare.decoder import compute
from attncheck.compare.decoder.fit_rotation import fit_rotation
from attncheck.compare.decoder.fits import norm_of, sliced
from attncheck.compare.decoder.observed import Observed, Unreadable, equal
from attncheck.compare.decoder.spec import AttentionSpec, NormSpec, Projection, RotarySpec
from attncheck.judge.projections import blocks_of, matched

SAME_LENGTH = 1e-9


def attention_of(observed: Observed, call: AttentionCall, number: int, name: str) -> AttentionSpec:
    """The attention of one layer.

    Raises:
        Unreadable: heads, rotation, mask or output do not come out.
    """
    query_BHTD, key_BGTD, value_BGTD = (
        each.detach().cpu().double() for each in (call.query_BHTD, call.key_BGSD, call.value_BGSD)
    )
    if query_BHTD.shape[-1] != value_BGTD.shape[-1] or bias_of(call) is not None:
        raise Unreadable(f"{name} has values of another width than its keys, or a bias on scores")
    linears = observed.linears(name)
    stages = {each: observed.outputs[each] for each in linears}
    query, query_norm, whole, query_factor, rotary = _side(observed, linears, query_BHTD, name)
    key, key_norm, _, key_factor, key_rotary = _side(observed, linears, key_BGTD, name)
    value = _rows(stages, linears, value_BGTD, exact=True)
    if value is None:
        raise Unreadable(f"{name}: the values are no rows of a projection")
    rotary = rotary if rotary is not None else key_rotary
    found = AttentionSpec(
        query=query,
        key=key,
        value=value[0],
        output=Projection(weight=torch.zeros(0)),
        heads=query_BHTD.shape[1],
        groups=value_BGTD.shape[1],
        width=value_BGTD.shape[-1],
        scale=_scale(call, query_BHTD) * query_factor * key_factor,
        query_norm=query_norm,
        key_norm=key_norm,
        whole_norm=whole,
        rotary=rotary,
        cap=call.options.get("softcap") or None,
        reach=_reach(call, name),
        sinks=_sinks(call),
        module=name,
    )
    return _with_output(observed, found, linears, name)


def _with_output(
    observed: Observed, found: AttentionSpec, linears: dict[str, Projection], name: str
) -> AttentionSpec:
    given = observed.outputs[name]
    for each, projection in linears.items():
        if equal(observed.outputs[each], given):
            found = replace(found, output=projection)
            if equal(compute.attention(found, observed.inputs[name]), given, 1e-6):
                return found
    raise Unreadable(f"{name}: its output does not come out of its projections")


def _scale(call: AttentionCall, query_BHTD: Tensor) -> float:
    scale = call.options.get("scaling", call.options.get("scale"))
    return float(scale) if isinstance(scale, (int, float)) else query_BHTD.shape[-1] ** -0.5


def _sinks(call: AttentionCall) -> Tensor | None:
    sinks = call.options.get("s_aux", getattr(call.module, "sinks", None))
    return sinks.detach().cpu().double() if isinstance(sinks, Tensor) else None


def _reach(call: AttentionCall, name: str) -> int | None:
    """How many keys a query reads, itself included; None where it reads all before it."""
    total = call.key_BGSD.shape[2]
    allowed_TS = allowed_BHTS(call).expand(*call.query_BHTD.shape[:2], -1, -1)[0, 0].cpu()
    causal_TS = torch.ones(total, total, dtype=torch.bool).tril()
    if torch.equal(allowed_TS, causal_TS):
        return None
    reach = int(allowed_TS[-1].sum())
    if torch.equal(allowed_TS, causal_TS.triu(1 - reach)):
        return reach
    raise Unreadable(f"{name}: its mask is neither causal nor a window")


def _rows(
    stages: dict[str, Tensor],
    linears: dict[str, Projection],
    states_BHTD: Tensor,
    *,
    exact: bool = False,
) -> tuple[Projection, Tensor, float] | None:
    """The rows of the map that give some states up to rotation, the states before it, and the
    factor between them.
    """
    batch, _, length, width = states_BHTD.shape
    for name, stage in reversed(stages.items()):
        for blocks_BNTD in blocks_of(stage, batch, length, width):
            match = matched(states_BHTD, blocks_BNTD, SAME_LENGTH * 10)
            if match is None:
                continue
            best_H, factor = match
            before_BHTD = blocks_BNTD[:, best_H]
            if exact and not equal(before_BHTD * factor, states_BHTD):
                continue
            rows_R = (best_H[:, None] * width + torch.arange(width)).flatten()
            return sliced(linears[name], rows_R), before_BHTD, factor
    return None


Side = tuple[Projection, NormSpec | None, bool, float, RotarySpec | None]


def _side(
    observed: Observed, linears: dict[str, Projection], states_BHTD: Tensor, name: str
) -> Side:
    """Where queries or keys come from: the rows, the norm, whether it takes all heads together,
    the factor and the rotation.
    """
    stages = {each: observed.outputs[each] for each in linears}
    norms = {
        each: found
        for each in observed.within(name)
        if each not in linears and (found := norm_of(observed, each)) is not None
    }
    source, norm, whole = _through_norm(observed, norms, states_BHTD)
    plain = _rows(
        stages, linears, states_BHTD if source is None else source[0], exact=source is not None
    )
    if plain is None:
        raise Unreadable(f"{name}: queries or keys are no rows of a projection")
    projection, before_BHTD, factor = plain
    if source is not None:
        before_BHTD, factor = source[1], source[2]
    rotary = None
    if not equal(before_BHTD * factor, states_BHTD):
        rotary = fit_rotation(before_BHTD, states_BHTD)
        if rotary is None:
            raise Unreadable(f"{name}: queries or keys are not rotated by their position")
        factor = 1.0
    return projection, norm, whole, factor, rotary


def _through_norm(
    observed: Observed, norms: dict[str, NormSpec], states_BHTD: Tensor
) -> tuple[tuple[Tensor, Tensor, float] | None, NormSpec | None, bool]:
    """The states before a norm and after it, where the states come from one."""
    batch, heads, length, width = states_BHTD.shape
    for name, norm in reversed(norms.items()):
        after, before = observed.outputs[name], observed.inputs[name]
        pairs: Any = zip(
            blocks_of(after, batch, length, width),
            blocks_of(before, batch, length, width),
            strict=True,
        )
        for after_BNTD, before_BNTD in pairs:
            if after_BNTD.shape[1] != heads:
                continue
            match = matched(states_BHTD, after_BNTD, SAME_LENGTH * 10)
            if match is not None:
                whole = norm.weight is not None and len(norm.weight) != width
                best_H, factor = match
                return (before_BNTD[:, best_H], after_BNTD[:, best_H], factor), norm, whole
    return None, None, False
