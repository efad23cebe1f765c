"""The fault of the catalogue that measured parts amount to, and the nearest one where none is
exact.
"""

from __future__ import annotations

from collections.abc import Sequence

from attncheck.observation.rules import cell_rule
from attncheck.observation.summary import Extent, Group

VECTORS = {
    "zero": "cache-drops-token",
    "other layer": "cache-layer-mixup",
    "rounded": "cache-low-precision",
    "other head": "kv-groups-tiled",
}
ROTATIONS = {
    "restart": "position-restart",
    "frozen": "position-frozen",
    "twice": "key-rotated-twice",
    "": "position-offset",
}
PLACES = {"restart": "position-restart", "frozen": "position-frozen"}
"""The nearest fault of hidden states that belong to other positions by a rule."""
CELLS = {
    "later": "causal-mask-missing",
    "off by one": "mask-off-by-one",
    "top left": "mask-top-left",
    "padding": "padding-visible",
    "window ignored": "window-ignored",
    "window size": "window-off-by-one",
    "missing": "cache-drops-token",
}
CELL_FAMILIES = {
    "documents": "document-leak",
    "inverted": "padding-visible",
    "other sequence": "rows-mixed",
    "visible": "causal-mask-missing",
    "empty": "padding-visible",
}
"""The nearest fault of a kind of cells, or of how they differ."""
SCORES = {
    "scaled": "softmax-scale",
    "cap": "softcap-missing",
    "sinks": "sink-missing",
    "bias": "alibi-local",
    "dtype": "cache-low-precision",
}
STATES = {
    "lost": "state-dropped",
    "other sequence": "cache-reorder",
    "other layer": "cache-layer-mixup",
    "rounded": "cache-low-precision",
}
STORED = frozenset({"keys", "values"})


def named(groups: Sequence[Group], extent: Extent) -> tuple[tuple[str, ...], str]:
    """(faults, family): the faults where every part belongs to one, those with the most deviations
    first, and the fault nearest to the largest part.
    """
    swapped = _swapped(groups, extent)
    if swapped:
        return (swapped,), swapped
    names = [_name(group, groups, extent) for group in groups]
    exact = tuple(dict.fromkeys(name for name, _ in names)) if all(e for _, e in names) else ()
    return exact, names[0][0] if names else ""


def _swapped(groups: Sequence[Group], extent: Extent) -> str:
    """The fault of layers that have each other's windows: some read beyond theirs, others stop at
    one that they do not have.
    """
    layers: dict[str, set[int]] = {"visible": set(), "hidden": set()}
    for group in groups:
        kind = cell_rule(group.members, extent).kind
        if group.part.what != "cells" or kind not in ("window ignored", "window size"):
            return ""
        layers.setdefault(group.part.how, set()).update(group.part.layers)
    apart = all(layers.values()) and not layers["visible"] & layers["hidden"]
    return "window-layers-swapped" if apart else ""


def _name(group: Group, groups: Sequence[Group], extent: Extent) -> tuple[str, bool]:
    part = group.part
    if part.what == "cells":
        kind = cell_rule(group.members, extent).kind
        usual = CELL_FAMILIES.get(kind) or CELL_FAMILIES.get(part.how, "mask-top-left")
        return CELLS.get(kind, usual), kind in CELLS
    if part.what == "scores":
        if part.how == "bias" and any(each.amount is not None for each in group.members):
            return "softmax-scale", False  # a bias where none is specified
        # the name of a wrong bias is that of ALiBi: it needs a prediction to be proven
        return SCORES.get(part.how, "softmax-scale"), part.how in SCORES and part.how != "bias"
    if part.how == "rotated":
        return _rotation(group, groups)
    if part.what in STORED:
        return _stored(group, groups, extent)
    if part.what == "state":
        return STATES.get(part.how, "state-dropped"), part.how in STATES
    families = {
        "queries": "position-offset",
        "context": "softmax-scale",
        "hidden": PLACES.get(group.rule, ""),
    }
    return families.get(part.what, ""), False


def _rotation(group: Group, groups: Sequence[Group]) -> tuple[str, bool]:
    turned = {each.part.what for each in groups if each.part.how == "rotated"}
    constant = group.part.amount is not None
    if group.members[0].base is not None:
        return "rope-scale-switch", False
    if group.rule in ("twice", "again"):
        return "key-rotated-twice", group.part.what == "keys"
    if group.rule in ROTATIONS and (group.rule or constant):
        return ROTATIONS[group.rule], "queries" in turned
    return "position-offset", False


def _stored(group: Group, groups: Sequence[Group], extent: Extent) -> tuple[str, bool]:
    part = group.part
    both = {each.part.what for each in groups if each.part.how == part.how} >= STORED
    if part.how == "zero" and any(each.channels for each in group.members):
        return "cache-drops-token", False
    if part.how in ("other token", "zero") and _misplaced(groups):
        return "cache-wrong-slot", True
    if part.how == "other token":
        return ("cache-stale" if both else "cache-wrong-slot"), True
    if part.how == "other sequence":
        return "cache-reorder", True
    if part.how in VECTORS:
        return VECTORS[part.how], True
    return "cache-wrong-slot", False


def _misplaced(groups: Sequence[Group]) -> bool:
    """Whether what the empty slots lack is what other slots hold instead of their own."""
    stored = [each for each in groups if each.part.what in STORED]
    empty = {slot for each in stored if each.part.how == "zero" for slot in each.part.slots}
    members = [
        each for group in stored if group.part.how == "other token" for each in group.members
    ]
    held = {each.source[2] for each in members if each.source is not None}
    return bool(empty) and empty <= held
