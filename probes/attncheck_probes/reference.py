"""Each layer's attention against attention that we compute ourselves.

What it checks
    What every attention layer puts out is softmax(scale q k) v as its config promises it: that
    scale, that window, soft-cap, sinks, linear biases, and query head h on KV head h // group, with
    queries and keys that are the layer's own projections, turned once, by the angles that its
    rotary numbers give. In one forward, in pieces on a cache, and under left padding.

Why it matters
    Two implementations that agree prove nothing. OPT once scaled its scores twice: eager and sdpa
    agreed to seven digits, and accuracy was gone. Only somebody who computes attention
    independently can tell.

How it measures
    The kernel's inputs, or those of the products that a model attends with by itself, are traced
    back to the layer's projections by the lengths of their vectors, which positions do not change;
    any factor on the way is taken off. Attention is then computed in float64 from the promise. A
    layer that differs is compared with the promise changed in one ingredient at a time; only an
    exact reproduction names the fault. Scale and heads are also fitted to the kernel's true
    weights. Calls on a cache are held to what one forward has shown. The budget is what rounding
    does to the same formula in the model's precision, in three orders. Angles are read off what
    projections gave and kernels got, so that no table is believed.

False alarms
    Where the config is silent, a layer is held to what it declares itself (its `scaling`), or to
    1/sqrt(head width), and its rotation to that of its siblings; a scale that nothing states is not
    judged. Layers that choose keys by content, do what is not known here, or are of a kind that
    nothing in sight turns, are skipped with the reason.

References
    Vaswani et al. 2017, section 3.2.1. Hugging Face transformers issue 38277 (OPT scaled twice in
    every implementation), 32848 (a soft-cap that the default implementation dropped).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, final

from attncheck.probing import (
    AtMost,
    Capability,
    Cause,
    Comparison,
    Divergence,
    Figure,
    ForwardSpec,
    LayerResult,
    Measurement,
    Probe,
    Subject,
    Unsupported,
    Verdict,
    all_ones,
    layer_results,
    pad_rows,
    projection_cases,
    scale_cases,
    skipped,
    verdict_of,
)

# Axes: B batch, H query heads, G key/value heads, T positions, D head width.


@final
@dataclass(frozen=True, kw_only=True)
class Reference(Probe):
    """Computes every layer's attention in float64 and compares."""

    name: ClassVar[str] = "reference"
    title: ClassVar[str] = "every layer's attention is what its config promises"
    controls: ClassVar[tuple[str, ...]] = (
        "softcap-missing",
        "sink-missing",
        "mask-top-left",
        "softmax-scale",
        "kv-groups-tiled",
        "causal-mask-missing",
    )

    def measure(self, subject: Subject) -> Iterator[Measurement]:
        """One forward without and one with a 2D mask, pieces on a cache, a padded batch; rotation;
        then what was fitted.
        """
        tokens = subject.inputs.tokens
        try:
            read = layer_results.judge_forward(subject, ForwardSpec(tokens))
        except Unsupported as reason:
            yield skipped("attention of every layer", str(reason))
            return
        yield from _cases(subject, "one forward", read)
        if subject.can.mask_2d:
            yield from _cases(
                subject,
                "one forward, 2D mask",
                layer_results.judge_forward(subject, ForwardSpec(tokens, mask=all_ones(tokens))),
            )
        if read.prefills:
            yield from _decoded(subject, read)
        yield from scale_cases(subject, read.layers)
        # where no attention was judged, planted faults have nothing to show in: what holds is then
        # no verdict on the model
        yield from (
            case
            for case in projection_cases(subject)
            if read.layers or verdict_of(case) is not Verdict.PASS
        )
        yield from _fits(read.layers)


def _decoded(subject: Subject, read: layer_results.LayerResults) -> Iterator[Measurement]:
    """A prefill, a chunk and a step on a cache; then a batch with padding on the left, and a step
    of it.
    """
    length, sizes = subject.inputs.length, layer_results.schedule(subject)
    ways = (
        *(("prefill with a cache", "a chunk on the cache")[: len(sizes) - 1]),
        "a step on the cache",
    )
    yield from _pieces(
        subject, ForwardSpec(subject.inputs.tokens, chunks=sizes), ways, read, subject.can.steps
    )
    batch = pad_rows(subject).spec(
        "left", salt=1, explicit=bool(subject.can.takes_positions), chunks=(length - 1, 1)
    )
    ways = ("left padding, prefill", "left padding, a step on the cache")
    yield from _pieces(subject, batch, ways, read, subject.can.steps & subject.can.mask_2d)


def _pieces(
    subject: Subject,
    spec: ForwardSpec,
    ways: tuple[str, ...],
    read: layer_results.LayerResults,
    can: Capability,
) -> Iterator[Measurement]:
    try:
        can.require()
        pieces = layer_results.judge_chunks(subject, spec, read.prefills)
    except Unsupported as reason:
        yield skipped(ways[-1], str(reason))
        return
    for way, piece in zip(ways, pieces, strict=True):
        yield from _cases(subject, way, piece)


def _cases(subject: Subject, way: str, read: layer_results.LayerResults) -> Iterator[Measurement]:
    computed = [layer for layer in read.layers if not layer.broken]
    if computed:
        yield _compared(subject, way, computed)
    yield from _broken(way, [layer for layer in read.layers if layer.broken])
    for reason, names in read.unread.items():
        yield skipped(f"{len(names)} layers not judged, {way}", f"{names[0]}: {reason}")


def _broken(way: str, layers: list[LayerResult]) -> Iterator[Measurement]:
    """Layers that lack keys, or form what they compare otherwise than in one forward: no output
    need be computed for that.
    """
    if layers:
        yield AtMost(
            f"what layers read and compare, {way}",
            float(len(layers)),
            "layers do otherwise than in one forward",
            positions=sum(layer.positions for layer in layers),
            note=f"{layers[0].name}: {layers[0].broken}",
            cause=Cause(module=layers[0].name),
        )


def _compared(subject: Subject, way: str, layers: list[LayerResult]) -> Measurement:
    wrong = [layer for layer in layers if not layer.passed]
    shown = wrong[0] if wrong else max(layers, key=lambda layer: layer.max_abs_diff / layer.budget)
    more = f" (and {len(wrong) - 1} more layers)" if len(wrong) > 1 else ""
    fault = "" if shown.other_keys else shown.fault
    return Comparison(
        f"attention output of {len(layers)} layers, {way}",
        Divergence(
            max_abs=shown.max_abs_diff,
            scale=shown.size,
            positions=sum(layer.positions for layer in layers),
        ),
        shown.budget,
        f"the same formula in {subject.dtype_name}, in three orders",
        unit="attention outputs",
        note=f"{shown.name}: {shown.difference}{more}" if wrong else shown.untraced,
        cause=Cause(fault, shown.residual, shown.name if wrong else ""),
    )


def _fits(layers: list[LayerResult]) -> Iterator[Measurement]:
    """What the kernel's weights say about scale and heads, and whether caps and sinks show at all
    on this input.
    """
    if not layers:
        return
    farthest = max(layers, key=lambda layer: abs(layer.fitted / layer.scale.value - 1))
    yield Figure(
        "scale that fits best",
        farthest.fitted,
        note=f"{farthest.name}: {farthest.scale.value:.6g} by {farthest.scale.source}",
    )
    shared = [layer for layer in layers if layer.kv_heads < len(layer.heads)]
    if shared:
        maps = {layer.heads for layer in shared}
        note = "; ".join(" ".join(map(str, heads)) for heads in sorted(maps)[:2])
        yield Figure(
            "KV heads that fit the query heads",
            float(shared[0].kv_heads),
            note=f"head by head: {note}",
        )
    for name in sorted({name for layer in layers for name in layer.effects}):
        effect = max(layer.effects.get(name, 0.0) for layer in layers)
        yield Figure(
            f"what the {name} changes",
            effect,
            note="in the output of the layer that it changes most",
        )
