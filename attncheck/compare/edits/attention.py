"""Scores, heads, mask and norms of an attention layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor

from attncheck.compare.decoder.spec import EVERYTHING, AttentionSpec, LayerSpec, NormSpec
from attncheck.compare.edits.edit import Edit, Fields

CAPS = (5.0, 10.0, 15.0, 20.0, 30.0, 50.0, 100.0)


def attention_edits(layer: LayerSpec, hidden: int, reaches: list[int | None]) -> Iterator[Edit]:
    """Every edit of a layer's attention but those of its rotation and weights; `reaches` are the
    windows of all layers.
    """
    spec = layer.attention
    yield from _scales(spec, hidden)
    yield from _caps(spec)
    yield from _heads(spec)
    yield from _masks(spec, reaches)
    yield from _norms(spec)


def edit(
    spec: AttentionSpec,
    name: str,
    got: str,
    want: str = "",
    fix: str = "",
    cost: int = 1,
    **changes: Any,
) -> Edit:
    """An edit that replaces some fields of an attention."""

    def apply(layer: LayerSpec) -> LayerSpec:
        return replace(layer, attention=replace(layer.attention, **changes))

    return Edit(
        name=name,
        part="attention",
        got=got,
        want=want,
        fix=fix,
        module=spec.module,
        cost=cost,
        on_layer=apply,
    )


def scale_edit(spec: AttentionSpec, scale: float) -> Edit:
    """An edit of the factor on the scores."""
    return edit(spec, "softmax-scale", f"score scale {scale:.6g}", f"{spec.scale:.6g}", scale=scale)


def _scales(spec: AttentionSpec, hidden: int) -> Iterator[Edit]:
    width = spec.width
    scales = {1.0, width**-0.5, 1 / width, hidden**-0.5, 1 / hidden, width**0.5, spec.scale**2}
    scales |= {(hidden / spec.heads) ** -0.5, (hidden / spec.groups) ** -0.5, (2 * width) ** -0.5}
    scales |= {spec.scale**0.5, spec.scale * 2, spec.scale / 2, (width / 2) ** -0.5}
    for scale in sorted(scales):
        if abs(scale - spec.scale) > 1e-9 * spec.scale:
            yield scale_edit(spec, scale)


def cap_edit(spec: AttentionSpec, cap: float, cost: int = 2) -> Edit:
    """An edit of the cap on scores."""
    name = "softcap-value" if spec.cap else "softcap-unexpected"
    want = f"{spec.cap:g}" if spec.cap else "none"
    return edit(spec, name, f"score cap {cap:g}", want, cap=cap, cost=cost)


def _caps(spec: AttentionSpec) -> Iterator[Edit]:
    if spec.cap:
        yield edit(spec, "softcap-missing", "no cap on the scores", f"{spec.cap:g}", cap=None)
    for cap in CAPS:
        if cap != spec.cap:
            yield cap_edit(spec, cap)


def _heads(spec: AttentionSpec) -> Iterator[Edit]:
    if 1 < spec.groups < spec.heads:
        yield edit(
            spec,
            "kv-groups-tiled",
            f"query head h reads key head h mod {spec.groups}",
            f"h // {spec.heads // spec.groups}",
            fix="repeating each key head in place",
            tiled=not spec.tiled,
        )
    yield edit(
        spec,
        "heads-merged",
        "heads merged without moving their axis back",
        fix="transposing heads and positions before merging",
        unmoved=True,
    )
    if spec.sinks is not None:
        yield edit(spec, "sink-missing", "no sinks", fix="adding the sinks", sinks=None)
        yield edit(spec, "sink-sign", "sinks of the other sign", sink_sign=-spec.sink_sign)


def _masks(spec: AttentionSpec, reaches: list[int | None]) -> Iterator[Edit]:
    if spec.ahead == EVERYTHING:
        yield mask_edit(spec, None, 0)
        return
    yield mask_edit(spec, spec.reach, EVERYTHING)
    yield mask_edit(spec, None, EVERYTHING)
    for ahead in (1, -1):
        yield mask_edit(spec, spec.reach, ahead)
    others = {each for each in reaches if each != spec.reach}
    near = {spec.reach + step for step in (1, -1, 2)} if spec.reach else set()
    for reach in (*near, *others, *([None] if spec.reach else [])):
        yield mask_edit(spec, reach, 0, swapped=reach in others and len(set(reaches)) > 1)


def mask_edit(spec: AttentionSpec, reach: int | None, ahead: int, swapped: bool = False) -> Edit:
    """An edit of which keys a query reads."""
    want = f"{spec.reach} keys" if spec.reach else "all before it"
    if spec.ahead == EVERYTHING:
        name, got = "causal-mask-unexpected", "queries that read no later token"
        want = "every token"
    elif ahead > 1:
        name, got, want = "causal-mask-missing", "queries that read every later token", ""
    elif ahead:
        name, want = "mask-off-by-one", "up to its own"
        got = "queries that read up to " + ("the next token" if ahead > 0 else "the token before")
    elif reach is None:
        name, got = "window-ignored", "no window"
    elif spec.reach is not None and abs(reach - spec.reach) <= 2:
        name, got = "window-off-by-one", f"a window of {reach} keys"
    else:
        name, got = "window-length", f"a window of {reach} keys"
    if swapped:
        name = "window-layers-swapped" if reach is not None else name
    return edit(spec, name, got, want, reach=reach, ahead=ahead, fix="putting the mask right")


def _norms(spec: AttentionSpec) -> Iterator[Edit]:
    query, key = spec.query_norm, spec.key_norm
    if query is None and key is None:
        return
    yield edit(
        spec,
        "qk-norm",
        "no query and key norm",
        fix="norming queries and keys",
        query_norm=None,
        key_norm=None,
    )
    yield edit(spec, "qk-norm", "no query norm", fix="norming queries", query_norm=None)
    yield edit(spec, "qk-norm", "no key norm", fix="norming keys", key_norm=None)
    if query is not None and key is not None:
        theirs, ours = replace(key, weight=query.weight), replace(query, weight=key.weight)
        got = "query and key norms exchanged"
        yield edit(spec, "qk-norm", got, query_norm=ours, key_norm=theirs)
        yield edit(spec, "qk-norm", "the query norm on keys as well", key_norm=theirs)
        yield edit(spec, "qk-norm", "the key norm on queries as well", query_norm=ours)
    if spec.whole_norm and query is not None and key is not None:
        heads: Fields = {
            "query_norm": _of_each_head(query, spec),
            "key_norm": _of_each_head(key, spec),
        }
        got, want = "query and key norms over each head", "them over all heads together"
        fix = "norming all heads of a token together"
        yield edit(spec, "qk-norm", got, want, fix, whole_norm=False, **heads)
    for name, norm in (("query", query), ("key", key)):
        if norm is not None and norm.weight is not None:
            fields: Fields = {f"{name}_norm": replace(norm, weight=None)}
            got = f"a {name} norm without its weight"
            yield edit(spec, "qk-norm", got, fix="multiplying by the weight", **fields)


def _of_each_head(norm: NormSpec, spec: AttentionSpec) -> NormSpec:
    """A norm over all heads as one over each, with its own weight."""

    def parted(vector: Tensor | None) -> Tensor | None:
        return None if vector is None else vector.view(-1, 1, spec.width)

    return replace(norm, weight=parted(norm.weight), bias=parted(norm.bias))
