"""The embedding, the head, and what is done to logits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attncheck.compare.decoder.feed_forward import ACTIVATIONS
from attncheck.compare.decoder.spec import DecoderSpec
from attncheck.compare.edits.edit import ROUNDING_ONLY, Edit
from attncheck.compare.edits.weights import readings, relation

CAPS = (5.0, 10.0, 15.0, 20.0, 30.0, 50.0, 100.0)
COARSE = 0.01
"""More than bfloat16 rounds."""
OFFSETS = (1, -1, 2, -2)


def embedding_edits(spec: DecoderSpec) -> Iterator[Edit]:
    """Every edit of what comes before the first layer."""
    width = spec.table.shape[-1]
    root = torch.tensor(width**0.5, dtype=torch.float64)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        rounded = float(root.to(dtype))
        if rounded != spec.scale and abs(rounded / spec.scale - 1) < COARSE:
            got = f"the root of {width} in {dtype}"
            yield _edit(spec, ROUNDING_ONLY, got, "", cost=0, scale=rounded)
    for scale in (1.0, width**0.5, width**-0.5, float(width)):
        if abs(scale - spec.scale) > 1e-9 * spec.scale:
            yield embedding_scale_edit(spec, scale)
    if spec.added is not None:
        got = "no row added to every embedding, as token types have it"
        yield _edit(spec, "token-type-missing", got, "", added=None)
    if spec.positions is None:
        return
    for step in OFFSETS:
        yield _edit(
            spec,
            "position-offset",
            f"position embeddings {step:+d} positions away",
            "",
            position_offset=spec.position_offset + step,
        )
    yield _edit(spec, "position-missing", "no position embeddings", "", positions=None)


def embedding_scale_edit(spec: DecoderSpec, scale: float) -> Edit:
    """An edit of the factor on embeddings."""
    return _edit(
        spec,
        "embedding-scale",
        f"embeddings scaled by {scale:.6g}",
        f"{spec.scale:.6g}",
        scale=scale,
    )


def _edit(
    spec: DecoderSpec,
    name: str,
    got: str,
    want: str,
    part: str = "embedding",
    cost: int = 1,
    **changes: Any,
) -> Edit:
    module = spec.embedding_module if part == "embedding" else spec.head.module
    return Edit(
        name=name,
        part=part,
        got=got,
        want=want,
        module=module,
        cost=cost,
        on_decoder=lambda each: replace(each, **changes),
    )


def head_edits(spec: DecoderSpec) -> Iterator[Edit]:
    """Every edit of the map to logits."""
    if spec.cap:
        yield _edit(spec, "logit-cap", "no cap on the logits", f"{spec.cap:g}", "head", cap=None)
    for cap in CAPS:
        if cap != spec.cap:
            want = f"{spec.cap:g}" if spec.cap else "none"
            yield _edit(spec, "logit-cap", f"logit cap {cap:g}", want, "head", cap=cap)
    if spec.logit_scale != 1.0:
        yield logit_scale_edit(spec, 1.0)
        yield logit_scale_edit(spec, 1 / spec.logit_scale)
    if not spec.tied and spec.table.shape == spec.head.weight.shape:
        tied = replace(spec.head, weight=spec.table)
        yield _edit(
            spec, "head-tied", "a head tied to the embeddings", "one of its own", "head", head=tied
        )
    yield from _head_map_edits(spec)
    if spec.head.bias is not None:
        without = replace(spec.head, bias=None)
        yield _edit(spec, "bias-missing", "a head without its bias", "", "head", head=without)


def _head_map_edits(spec: DecoderSpec) -> Iterator[Edit]:
    """The map before the final norm: its activation, its bias, and whether it is there."""
    if spec.head_map is None:
        return
    for name in ACTIVATIONS:
        if name != spec.head_activation:
            got, want = f"{name} before the head", spec.head_activation
            yield _edit(spec, "activation", got, want, "head", head_activation=name)
    if spec.head_map.bias is not None:
        without = replace(spec.head_map, bias=None)
        got = "a map before the head without its bias"
        yield _edit(spec, "bias-missing", got, "", "head", head_map=without)


def head_weight_edits(spec: DecoderSpec, foreign: dict[str, Tensor]) -> Iterator[Edit]:
    """A head with a matrix that only the port has."""
    for matrix in foreign.values():
        for theirs in readings(matrix, spec.head.weight.shape):
            name, words = relation(theirs, spec.head.weight)
            if spec.tied and name == "weights-differ":
                name, words = "head-untied", "of its own, not tied to the embeddings"
            head = replace(spec.head, weight=theirs)
            got, want = f"a head weight {words}", "the embeddings" if spec.tied else ""
            yield _edit(spec, name, got, want, "head", head=head)


def logit_cap_edit(spec: DecoderSpec, cap: float) -> Edit:
    """An edit of the cap on logits."""
    want = f"{spec.cap:g}" if spec.cap else "none"
    return _edit(spec, "logit-cap", f"logit cap {cap:g}", want, "head", cap=cap)


def logit_scale_edit(spec: DecoderSpec, scale: float) -> Edit:
    """An edit of the factor on logits."""
    got, want = f"logits multiplied by {scale:.6g}", f"{spec.logit_scale:.6g}"
    return _edit(spec, "logit-scale", got, want, "head", logit_scale=scale)
