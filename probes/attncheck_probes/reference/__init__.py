"""Every layer's attention is what its config states, computed independently.

What it checks
    The output of every attention layer is softmax(scale q k) v as its config states it: that scale,
    that window, soft-cap, sinks, linear biases, and query head h on KV head h // group, with
    queries and keys that are the layer's own projections, rotated once, by the angles of its rotary
    settings. In one forward, in chunks on a cache, and under left padding.

Why it matters
    Two implementations that agree prove nothing. OPT once scaled its scores twice: eager and sdpa
    agreed to seven digits, and accuracy was gone. Only an independent computation of attention can
    tell.

How it measures
    The kernel's inputs, or those of the model's own attention products, are traced back to the
    layer's projections by the lengths of their vectors, which positions do not change; any factor
    on the way is taken off. Attention is then computed in float64 as the config states it. A layer
    that differs is compared with that computation changed in one ingredient at a time; only an
    exact reproduction names the fault. Scale and heads are also fitted to the kernel's true
    weights. Calls on a cache are checked against what one forward has shown. The budget is what
    rounding does to the same formula in the model's precision, in three orders. Angles are measured
    between what projections gave and kernels got, so that no table is trusted; a head that is
    rotated or scaled otherwise than the others of its layer is named.

False alarms
    Where the config is silent, a layer is checked against what it declares itself (its `scaling`)
    or 1/sqrt(head width), and its rotation against that of its siblings; a scale that nothing
    states is not judged. Layers that choose keys by content, do something unknown, or have a type
    for which no rotation is observed, are skipped with the reason.

References
    Vaswani et al. 2017, section 3.2.1. Hugging Face transformers issue 38277 (OPT scaled twice in
    every implementation), 32848 (a soft-cap that the default implementation dropped).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from attncheck.probing import (
    Capability,
    ForwardSpec,
    Measurement,
    Probe,
    Subject,
    Unsupported,
    Verdict,
    all_ones,
    asked,
    chosen,
    layer_results,
    left_padded,
    not_measured,
    pad_rows,
    projection_cases,
    scale_cases,
    verdict_of,
)
from attncheck_probes.reference.layer_cases import fits, layer_cases

MASKED = "one forward, 2D mask"
CACHED = ("prefill with a cache", "a chunk on the cache", "a step on the cache")
PADDED = ("left padding, prefill", "left padding, a step on the cache")

IN_CHUNKS = "mask-top-left"
"""A fault that calls on a cache show and one forward does not."""


@dataclass(frozen=True, kw_only=True)
class Reference(Probe):
    """Computes every layer's attention in float64 and compares."""

    name = "reference"
    title = "every layer's attention is what its config states"
    promise = True
    controls = (
        "softcap-missing",
        "sink-missing",
        IN_CHUNKS,
        "softmax-scale",
        "kv-groups-tiled",
        "causal-mask-missing",
    )

    def measure(self, subject: Subject) -> Iterator[Measurement]:
        """One forward without and one with a 2D mask, chunks on a cache, a padded batch; rotation;
        then the fitted figures.
        """
        tokens = subject.inputs.tokens
        try:
            results = layer_results.judge_forward(subject, ForwardSpec(tokens))
        except Unsupported as reason:
            yield not_measured("attention of every layer", reason)
            return
        if chosen("one forward"):
            yield from layer_cases(subject, "one forward", results)
        if subject.can.mask_2d and _asked(MASKED) and chosen(MASKED):
            masked = layer_results.judge_forward(
                subject, ForwardSpec(tokens, mask=all_ones(tokens))
            )
            yield from layer_cases(subject, MASKED, masked)
        if results.prefills:
            yield from _decoded(subject, results)
        layers = results.layers
        if chosen("scale"):
            yield from scale_cases(subject, layers)
        # Where no attention was judged, no injected fault can show, so a pass would prove nothing.
        for case in projection_cases(subject) if chosen("rotation and heads") else ():
            if layers or verdict_of(case) is not Verdict.PASS:
                yield case
        if layers and chosen("scale"):
            yield from fits(layers)


def _decoded(subject: Subject, results: layer_results.LayerResults) -> Iterator[Measurement]:
    """A prefill, a chunk and a step on a cache; then a left-padded batch, and a step of it."""
    length, sizes = subject.inputs.length, layer_results.schedule(subject)
    spec, can = ForwardSpec(subject.inputs.tokens, chunks=sizes), subject.can
    calls = (*CACHED[: len(sizes) - 1], CACHED[-1])
    if _asked(*calls) and chosen("on a cache"):
        yield from _chunks(subject, spec, calls, results, can.steps)
    if _asked(*PADDED) and chosen("left padding"):
        spec = left_padded(subject, pad_rows(subject), chunks=(length - 1, 1))
        yield from _chunks(subject, spec, PADDED, results, can.steps & can.mask_2d)


def _asked(*calls: str) -> bool:
    return asked(lambda name: name.endswith(calls))


def _chunks(
    subject: Subject,
    spec: ForwardSpec,
    calls: tuple[str, ...],
    results: layer_results.LayerResults,
    can: Capability,
) -> Iterator[Measurement]:
    try:
        can.require()
        chunks = layer_results.judge_chunks(subject, spec, results.prefills)
    except Unsupported as reason:
        yield not_measured(calls[-1], reason)
        return
    if IN_CHUNKS in subject.passes.injected and not any(each.layers for each in chunks):
        raise Unsupported("no call on a cache is judged, where alone this fault shows")
    for call, chunk in zip(calls, chunks, strict=True):
        yield from layer_cases(subject, call, chunk)
