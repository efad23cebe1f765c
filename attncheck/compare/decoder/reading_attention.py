"""One layer's attention read by effect: which rows of which weight each head comes from, how it was
rotated, and what the kernel did with it.

Axes: B batch, T positions, S keys, H query heads, G key/value heads, N blocks of D channels,
D head width, R rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from attncheck.attention.alibi import slopes_of
from attncheck.attention.call import AttentionCall
from attncheck.attention.masks import allowed_BHTS, bias_of
from attncheck.compare.decoder import compute
from attncheck.compare.decoder.fit_rotation import fit_rotation, fit_table
from attncheck.compare.decoder.fits import norm_of, sliced
from attncheck.compare.decoder.observed import Observed, Unreadable, equal
from attncheck.compare.decoder.reading_latent import with_latents
from attncheck.compare.decoder.spec import (
    EVERYTHING,
    AttentionSpec,
    NormSpec,
    Projection,
    RotarySpec,
)
from attncheck.judge.projections import blocks_of, matched

SAME_LENGTH = 1e-9
LENGTHS = (10 * SAME_LENGTH, 1e-6)
"""How far the lengths of heads may move: a table of cosines that is kept in float32 moves them."""


def attention_of(
    observed: Observed, call: AttentionCall, number: int, name: str, output: str = ""
) -> AttentionSpec:
    """The attention of one layer; `output` is its last linear map where that stands outside.

    Raises:
        Unreadable: heads, rotation, mask or output do not come out.
    """
    query_BHTD, key_BGTD, value_BGTD = (
        each.detach().cpu().double() for each in (call.query_BHTD, call.key_BGSD, call.value_BGSD)
    )
    linears = observed.linears(name)
    empty = Projection(weight=torch.zeros(0))
    reach, ahead = _reach(call, name)
    found = AttentionSpec(
        query=empty,
        key=empty,
        value=empty,
        output=empty,
        heads=query_BHTD.shape[1],
        groups=value_BGTD.shape[1],
        width=query_BHTD.shape[-1],
        scale=_scale(call, query_BHTD),
        cap=call.options.get("softcap") or None,
        reach=reach,
        ahead=ahead,
        sinks=_sinks(call),
        slopes=_slopes(call, name),
        module=name,
    )
    if query_BHTD.shape[-1] != value_BGTD.shape[-1]:
        return _with_output(observed, with_latents(observed, call, found, name), output)
    try:
        found = _with_projections(observed, found, linears, (query_BHTD, key_BGTD, value_BGTD))
    except Unreadable:
        if query_BHTD.shape[1] != key_BGTD.shape[1]:
            raise
        found = with_latents(observed, call, found, name)
    return _with_output(observed, found, output)


def _with_projections(
    observed: Observed,
    found: AttentionSpec,
    linears: dict[str, Projection],
    states: tuple[Tensor, Tensor, Tensor],
) -> AttentionSpec:
    """The attention with the rows, norms and rotation of its queries, keys and values."""
    query_BHTD, key_BGTD, value_BGTD = states
    name = found.module
    stages = {each: observed.outputs[each] for each in linears}
    query, query_norm, whole, query_factor, rotary = _side(observed, linears, query_BHTD, name)
    key, key_norm, _, key_factor, key_rotary = _side(observed, linears, key_BGTD, name)
    value = _rows(stages, linears, value_BGTD, exact=True)
    if value is None:
        raise Unreadable(f"{name}: the values are no rows of a projection")
    whole_spec = replace(
        found,
        query=query,
        key=key,
        value=value[0],
        scale=found.scale * query_factor * key_factor,
        query_norm=query_norm,
        key_norm=key_norm,
        whole_norm=whole,
        rotary=rotary if rotary is not None else key_rotary,
    )
    return _stored_once(whole_spec)


def _stored_once(found: AttentionSpec) -> AttentionSpec:
    """The attention with key and value heads once that are repeated before the kernel."""
    norm = found.key_norm
    if norm is not None and norm.weight is not None and norm.weight.ndim > 1:
        return found
    groups, width = found.groups, found.width
    for times in range(groups, 1, -1):
        rows_R = torch.arange(groups * width).view(groups, width)[::times].flatten()
        maps = (found.key, found.value)
        if groups % times == 0 and all(_repeats(each, times, width) for each in maps):
            key, value = (sliced(each, rows_R) for each in maps)
            return replace(found, key=key, value=value, groups=groups // times)
    return found


def _repeats(projection: Projection, times: int, width: int) -> bool:
    """Whether each head of a map stands there so many times, one after the other."""
    own_NXC = projection.weight.reshape(-1, times, width, projection.weight.shape[-1])
    return torch.equal(own_NXC, own_NXC[:, :1].expand_as(own_NXC))


def _with_output(observed: Observed, found: AttentionSpec, output: str) -> AttentionSpec:
    name = found.module
    linears = observed.linears(name)
    if output and output not in linears and (outside := observed.linear(output)) is not None:
        linears[output] = outside
    given = observed.outputs[output or name]
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


def _slopes(call: AttentionCall, name: str) -> Tensor | None:
    """slopes_H of a bias that falls linearly with the distance to a key; None without a bias."""
    bias_BHTS = bias_of(call)
    if bias_BHTS is None:
        return None
    heads = call.query_BHTD.shape[1]
    bias_BHTS = bias_BHTS.detach().cpu().double().expand(-1, heads, call.query_BHTD.shape[2], -1)
    slopes_H = slopes_of(bias_BHTS, allowed_BHTS(call).cpu(), torch.float64)
    if slopes_H is None:
        raise Unreadable(f"{name} has a bias on scores that is not linear")
    return slopes_H


def _reach(call: AttentionCall, name: str) -> tuple[int | None, int]:
    """How many keys a query reads, itself included, None where it reads all before it; and how
    many after itself.
    """
    total = call.key_BGSD.shape[2]
    allowed_TS = allowed_BHTS(call).expand(*call.query_BHTD.shape[:2], -1, -1)[0, 0].cpu()
    causal_TS = torch.ones(total, total, dtype=torch.bool).tril()
    if bool(allowed_TS.all()) and total > 1:
        return None, EVERYTHING
    if torch.equal(allowed_TS, causal_TS):
        return None, 0
    reach = int(allowed_TS[-1].sum())
    if torch.equal(allowed_TS, causal_TS.triu(1 - reach)):
        return reach, 0
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
    readings = [
        (name, blocks_BNTD, slack)
        for slack in LENGTHS
        for name, stage in reversed(stages.items())
        for blocks_BNTD in blocks_of(stage, batch, length, width)
    ]
    for name, blocks_BNTD, slack in readings:
        match = matched(states_BHTD, blocks_BNTD, slack)
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
        rotary = fit_rotation(before_BHTD, states_BHTD) or fit_table(before_BHTD, states_BHTD)
        if rotary is None:
            raise Unreadable(f"{name}: queries or keys are not rotated by their position")
        factor = 1.0
    return projection, norm, whole, factor, rotary


def _through_norm(
    observed: Observed, norms: dict[str, NormSpec], states_BHTD: Tensor
) -> tuple[tuple[Tensor, Tensor, float] | None, NormSpec | None, bool]:
    """The states before a norm and after it, where the states come from one."""
    batch, heads, length, width = states_BHTD.shape
    shape = batch, length, width
    ones = [
        (norm, blocks_of(observed.outputs[name], *shape), blocks_of(observed.inputs[name], *shape))
        for name, norm in norms.items()
    ]
    for norm, after, before in (*reversed(ones), *_of_heads(norms, ones, heads)):
        for after_BNTD, before_BNTD in zip(after, before, strict=True):
            if after_BNTD.shape[1] != heads:
                continue
            match = matched(states_BHTD, after_BNTD, SAME_LENGTH * 10)
            if match is not None:
                whole = norm.weight is not None and norm.weight.shape[-1] != width
                best_H, factor = match
                return (before_BNTD[:, best_H], after_BNTD[:, best_H], factor), norm, whole
    return None, None, False


Normed = tuple[NormSpec, list[Tensor], list[Tensor]]


def _of_heads(
    norms: dict[str, NormSpec], ones: list[Normed], heads: int
) -> Iterator[tuple[NormSpec, list[Tensor], list[Tensor]]]:
    """Lists of as many norms as there are heads, one for each, as one norm with a weight a head."""
    lists: dict[str, list[Normed]] = {}
    for name, each in zip(norms, ones, strict=True):
        if each[1] and each[1][0].shape[1] == 1:
            lists.setdefault(name.rpartition(".")[0], []).append(each)
    for members in lists.values():
        if len(members) == heads:
            first = members[0][0]
            weights = [each.weight for each, _, _ in members if each.weight is not None]
            biases = [each.bias for each, _, _ in members if each.bias is not None]
            together = replace(
                first,
                weight=torch.stack(weights)[:, None] if len(weights) == heads else None,
                bias=torch.stack(biases)[:, None] if len(biases) == heads else None,
            )
            after_BHTD = torch.cat([after[0] for _, after, _ in members], 1)
            before_BHTD = torch.cat([before[0] for _, _, before in members], 1)
            yield together, [after_BHTD], [before_BHTD]
