"""A comparison as JSON: the verdict, the named faults, and every call."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

from attncheck.attention.layers import layer_number
from attncheck.compare.divergence import ForwardComparison
from attncheck.compare.naming import Explanation, NamedFault
from attncheck.compare.page import verdict_words
from attncheck.compare.sides import TwoSides
from attncheck.core.version import __version__

SCHEMA = "attncheck-compare/1"


def comparison_json(sides: TwoSides, exit_code: int) -> str:
    """The whole outcome as text."""
    comparison, found = sides.comparison, sides.explanation
    faults = list(found.faults) if found is not None and sides.verdict == "different" else []
    body: dict[str, Any] = {
        "schema": SCHEMA,
        "attncheck": __version__,
        "command": "compare",
        "exit_code": exit_code,
        "verdict": sides.verdict,
        "sentence": verdict_words(sides),
        "left": str(comparison.left),
        "right": str(comparison.right),
        "reference": "right" if found is not None and found.swapped else "left",
        "faults": [_fault(each) for each in faults],
        "diagnosis": _diagnosis(found, faults),
        "location": _location(sides, faults),
        "calls": [_call(each) for each in comparison.forwards],
        "further_calls": [
            {"name": each.call.name, "verdict": each.held, "note": each.note}
            for each in (sides.further.calls if sides.further else ())
        ],
        "state": list(sides.state),
        "higher_precision": [_call(each) for each in sides.raised.forwards] if sides.raised else [],
        "weights": [
            {"name": each.name, "kind": each.kind, "words": each.words} for each in sides.how
        ],
        "alignment": [{"value": value, "module": module} for value, module in sides.alignment],
        "weights_on_one_side": list(comparison.missing),
        "control": asdict(sides.control) if sides.control else None,
    }
    return json.dumps(body, indent=1)


def _fault(each: NamedFault) -> dict[str, Any]:
    return {
        "name": each.name,
        "sentence": each.sentence,
        "module": each.module,
        "other_module": each.other_module,
        "layer": each.layer,
        "layers": list(each.layers),
    }


def _diagnosis(found: Explanation | None, faults: list[NamedFault]) -> dict[str, Any] | None:
    if found is None:
        return None
    if not faults:
        return {"fault": None, "how": "unexplained", "sentence": found.reason or None}
    return {
        "fault": faults[0].name,
        "how": "reproduced",
        "residual": _number(found.residual),
        "sentence": faults[0].sentence,
    }


def _location(sides: TwoSides, faults: list[NamedFault]) -> dict[str, Any] | None:
    """The module of the first named fault, else where the search ended, else the first module that
    differs.
    """
    if sides.verdict != "different":
        return None
    if faults:
        return {"module": faults[0].module, "layer": faults[0].layer}
    found = sides.explanation
    if found is not None and found.module:
        return {"module": found.module, "layer": found.layer}
    worst = (sides.raised or sides.comparison).worst
    if worst is None or worst.first is None:
        return None
    return {"module": worst.first.home, "layer": layer_number(worst.first.home)}


def _call(each: ForwardComparison) -> dict[str, Any]:
    return {
        "name": each.way,
        "verdict": each.verdict,
        "max_abs": _number(each.max_abs),
        "budget": _number(each.budget),
        "scale": _number(each.scale),
        "nonfinite": each.nonfinite,
        "top1_flips": each.flips,
        "positions": each.positions,
        "first_position": each.first_position,
        "first_module": each.first.home if each.first else None,
    }


def _number(value: float) -> float | str:
    return (
        value
        if math.isfinite(value)
        else ("nan" if math.isnan(value) else "inf" if value > 0 else "-inf")
    )
