"""The results of the judge as cases: outputs, layers that read otherwise, and fitted figures.

Axes: B batch, H query heads, G key/value heads, T positions, D head width.
"""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.probing import (
    AtMost,
    Cause,
    Comparison,
    Divergence,
    Figure,
    LayerResult,
    Measurement,
    Subject,
    layer_results,
    skipped,
)


def layer_cases(
    subject: Subject, call: str, results: layer_results.LayerResults
) -> Iterator[Measurement]:
    """One call: computed outputs, layers that read otherwise, and layers that were not judged."""
    computed = [layer for layer in results.layers if not layer.broken]
    if computed:
        yield _compared(subject, f"attention output of {len(computed)} layers, {call}", computed)
    broken = [layer for layer in results.layers if layer.broken]
    if broken:
        # these lack keys, or form what they compare otherwise: no output need be computed
        yield AtMost(
            f"what layers read and compare, {call}",
            float(len(broken)),
            "layers differ from one forward",
            positions=sum(layer.positions for layer in broken),
            note=f"{broken[0].name}: {broken[0].broken}",
            cause=Cause(module=broken[0].name),
        )
    for reason, names in results.unread.items():
        yield skipped(f"{len(names)} layers not judged, {call}", f"{names[0]}: {reason}")


def _compared(subject: Subject, name: str, layers: list[LayerResult]) -> Measurement:
    wrong = [layer for layer in layers if not layer.passed]
    shown = (
        wrong[0]
        if wrong
        else max(layers, key=lambda layer: layer.max_abs_diff / (layer.budget or 1))
    )
    more = f" (and {len(wrong) - 1} more layers)" if len(wrong) > 1 else ""
    fault, module = "" if shown.other_keys else shown.fault, shown.name if wrong else ""
    positions = sum(layer.positions for layer in layers)
    return Comparison(
        name,
        Divergence(max_abs=shown.max_abs_diff, scale=shown.size, positions=positions),
        shown.budget,
        f"the same formula in {subject.dtype_name}, in three orders",
        unit="attention outputs",
        note=f"{shown.name}: {shown.difference}{more}" if wrong else shown.untraced,
        cause=Cause(fault, shown.residual, module),
    )


def fits(layers: list[LayerResult]) -> Iterator[Measurement]:
    """Scale and heads that fit the kernel's weights, and whether caps and sinks have any effect on
    this input.
    """
    layer = max(layers, key=lambda layer: abs(layer.fitted / layer.scale.value - 1))
    note = f"{layer.name}: {layer.scale.value:.6g} by {layer.scale.source}"
    yield Figure("scale that fits best", layer.fitted, note=note)
    shared = [layer for layer in layers if layer.kv_heads < len(layer.heads)]
    if shared:
        maps = sorted({layer.heads for layer in shared})[:2]
        note = f"head by head: {'; '.join(' '.join(map(str, heads)) for heads in maps)}"
        yield Figure("KV heads that fit the query heads", float(shared[0].kv_heads), note=note)
    for name in sorted({name for layer in layers for name in layer.effects}):
        effect = max(layer.effects.get(name, 0.0) for layer in layers)
        note = "in the output of the layer that it changes most"
        yield Figure(f"what the {name} changes", effect, note=note)
