"""Whether a finding explains a random fault by the right parts, and places it in the right module.

A catalogue name is right if its fault can give the same logits as the composed one, in the call
that was explained: the logits were reproduced, so the name is judged by what it says is wrong.
"""

from __future__ import annotations

from attncheck.attention.layers import layer_number
from attncheck.core.finding import Diagnosis, Finding, Location
from attncheck.core.observed_part import ObservedPart
from attncheck.run.random_faults.parts import CELLS, EVERY, PLACINGS, RandomFault

SLOTS = ("cache-wrong-slot", "cache-drops-token", "cache-stale", "cache-crop")
ROWS = ("rows-mixed", "cache-reorder")
HEADS = ("kv-groups-tiled",)
ROUNDED = ("cache-low-precision",)
ROTATED = (
    "key-rotated-twice",
    "position-offset",
    "position-restart",
    "position-frozen",
    "rope-scale-switch",
    "position-ignores-padding",
)
VISIBLE = (
    "causal-mask-missing",
    "mask-off-by-one",
    "mask-top-left",
    "window-off-by-one",
    "window-ignored",
    "window-layers-swapped",
    "padding-visible",
    "right-padding-visible",
    "attention-mask-ignored",
    "cache-drops-token",
    "document-leak",
)
STATES = {
    "slot": SLOTS,
    "head": HEADS,
    "row": ROWS,
    "layer": ("cache-layer-mixup",),
    "angle": ROTATED,
    "base": ROTATED,
    "round": ROUNDED,
    "scale": ("softmax-scale",),
    "zero": ("cache-stale", "cache-drops-token", "state-dropped"),
    "leak": ("leak-outside-attention", "causal-mask-missing", "mask-off-by-one"),
    "spill": ROWS,
}
RECURRENT = {**STATES, "zero": ("state-dropped",), "layer": ("cache-layer-mixup", "state-dropped")}
KEYS_AND_SCORES = ("keys", "scores")
MEASURED_WHAT = {
    "queries": ("queries", "scores"),
    "keys": KEYS_AND_SCORES,
    "values": ("values", "context"),
    "keys+values": (*KEYS_AND_SCORES, "values"),
    "cells": ("cells", "scores"),
    "output": ("context", "hidden"),
    "stored-keys": KEYS_AND_SCORES,
    "stored-values": ("values", "context"),
    "stored-keys+values": (*KEYS_AND_SCORES, "values"),
    "states": ("state",),
    "hidden": ("hidden",),
    "logits": ("logits",),
    "positions": ("keys", "queries"),
}
"""What a measurement calls what was changed."""
MEASURED_HOW = {
    "slot": ("other token", "twice", "missing"),
    "head": ("other head", "reordered"),
    "row": ("other sequence",),
    "layer": ("other layer",),
    "angle": ("rotated",),
    "base": ("rotated",),
    "round": ("rounded", "dtype"),
    "scale": ("scaled",),
    "leak": ("other token", "another function", "visible"),
    "spill": ("other sequence", "another function"),
    "zero": ("zero", "missing", "lost"),
    **dict.fromkeys(CELLS, ("visible", "hidden")),
    **dict.fromkeys(PLACINGS, ("rotated",)),
}
"""What a measurement calls how it was changed."""
OUTSIDE = ("leak-outside-attention", "rows-mixed")


def right_names(fault: RandomFault) -> tuple[str, ...]:
    """The names of the catalogue that are true of a composed fault."""
    if fault.what == "cells":
        return VISIBLE
    if fault.what == "positions":
        return ROTATED
    if fault.what == "states":
        return RECURRENT[fault.kind]
    if fault.what in ("hidden", "logits"):
        return (*OUTSIDE, "logits-to-keep")
    if fault.what == "queries":
        return (
            (*STATES[fault.kind], "mask-top-left") if fault.kind == "slot" else STATES[fault.kind]
        )
    return STATES[fault.kind]


def explains(fault: RandomFault, layer: int | None, found: Diagnosis | None) -> bool | None:
    """True where a diagnosis names the right parts, False where it names others, None where it
    claims nothing. `layer` is that of the fault, None where it is in all.
    """
    if found is None or found.how not in ("reproduced", "measured"):
        return None
    if not found.fault and not found.parts:
        return None  # it says where, and not what
    if any(_measured(fault, layer, part) for part in found.parts):
        return True
    return found.fault in right_names(fault)


def _measured(fault: RandomFault, layer: int | None, part: ObservedPart) -> bool:
    """Whether one measured part says what was changed, and how, in the layer of the fault."""
    here = not part.layers or layer is None or layer in part.layers
    if fault.what == "positions" and (part.what, part.how) == ("hidden", "other token"):
        return not part.layers  # rows of a table of learned positions
    return here and part.what in MEASURED_WHAT[fault.what] and part.how in MEASURED_HOW[fault.kind]


def places(fault: RandomFault, modules: tuple[str, ...], found: Location | None) -> bool:
    """Whether a location is the first module that the fault concerns, or stands in it or around it
    within the same layer. Logits belong to no layer, and positions show in the first layer that
    has them, or in a table.
    """
    if found is None:
        return False
    if fault.what == "logits":
        return layer_number(found.module) is None
    if fault.what == "positions" and layer_number(found.module) is None:
        return True
    concerned = modules[1:] if fault.kind == "layer" else modules  # the first has none before it
    first = fault.at if fault.at != EVERY else next(iter(concerned), "")
    inside = found.module.startswith(first) or first.startswith(found.module)
    return inside or layer_number(found.module) == layer_number(first)


def claims(finding: Finding) -> str:
    """What a finding says in a few words, for the list of misses."""
    found, place = finding.diagnosis, finding.location
    said = "no diagnosis" if found is None else f"{found.how} {found.fault}".strip()
    return f"{finding.probe}: {said} at {place.module if place else 'no place'}"
