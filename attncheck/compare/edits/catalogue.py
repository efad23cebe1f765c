"""Every edit of one stage, those whose numbers are measured in the port first."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from attncheck.compare.decoder.spec import DecoderSpec
from attncheck.compare.edits.attention import attention_edits
from attncheck.compare.edits.biases import bias_edits
from attncheck.compare.edits.blocks import block_edits
from attncheck.compare.edits.edit import Edit
from attncheck.compare.edits.expert_weights import expert_edits, expert_weight_edits
from attncheck.compare.edits.fused import layout_edits
from attncheck.compare.edits.measured import measured_behind, measured_edits
from attncheck.compare.edits.norms import norm_edits, outer_norm_edits
from attncheck.compare.edits.opaque import opaque_edits
from attncheck.compare.edits.outer import (
    embedding_edits,
    embedding_scale_edit,
    head_edits,
    head_weight_edits,
    logit_scale_edit,
)
from attncheck.compare.edits.port_weights import PortWeights
from attncheck.compare.edits.rotary import rotary_edits
from attncheck.compare.edits.sums import sum_edits
from attncheck.compare.edits.weights import weight_edits
from attncheck.compare.flow import FlowTape


def edits_before(spec: DecoderSpec, output: Tensor, tape: FlowTape, slack: float) -> Iterator[Edit]:
    """Edits of what comes before the layers; `output` is what goes into the first one."""
    for factor in tape.factors(output, slack):
        yield embedding_scale_edit(spec, spec.scale * factor)
    yield from embedding_edits(spec)
    yield from outer_norm_edits(spec, "embedding_norm")


def edits_behind(
    spec: DecoderSpec,
    nodes: dict[str, Tensor],
    logits_BTV: Tensor,
    tape: FlowTape,
    slack: float,
    foreign: dict[str, Tensor],
) -> Iterator[Edit]:
    """Edits of what comes behind the layers, whose values are `nodes`; the port's logits."""
    yield from measured_behind(spec, nodes, logits_BTV, tape, slack)
    for factor in tape.factors(nodes["logits"], slack):
        yield logit_scale_edit(spec, spec.logit_scale * factor)
    yield from head_edits(spec)
    yield from head_weight_edits(spec, foreign)
    yield from outer_norm_edits(spec, "final_norm")


def edits_of_layer(
    spec: DecoderSpec,
    number: int,
    reaches: list[int | None],
    nodes: dict[str, Tensor],
    tape: FlowTape,
    slack: float,
    weights: PortWeights,
    foreign: dict[str, Tensor],
) -> Iterator[Edit]:
    """Edits of one layer, whose values are `nodes`; `foreign` are matrices of the port alone, and
    `reaches` the windows of all layers of the reference.
    """
    layer = spec.layers[number]
    attention = layer.attention.opaque is None and layer.opaque is None
    rotations = [r for each in spec.layers if (r := each.attention.rotary) is not None]
    if attention:
        yield from measured_edits(layer, nodes, tape, slack)
        yield from rotary_edits(layer, rotations)
        yield from attention_edits(layer, spec.table.shape[-1], reaches)
        yield from bias_edits(layer.attention)
        yield from layout_edits(layer)
    yield from opaque_edits(spec, number, weights, foreign)
    if layer.opaque is not None:
        return
    yield from norm_edits(layer)
    if layer.mlp.module and getattr(layer.mlp, "opaque", None) is None:
        yield from block_edits(layer)
    yield from sum_edits(layer)
    yield from weight_edits(spec, number, weights, foreign)
    yield from expert_edits(layer)
    yield from expert_weight_edits(layer, foreign)
