"""Findings on a model whose plain forward is not finite: no fault of attention is looked for there,
since every comparison with it differs.
"""

from __future__ import annotations

from dataclasses import replace

from attncheck.attention.layers import layer_number
from attncheck.core.finding import Diagnosis, Finding, Location
from attncheck.model.finite import NotFinite, bad_weights, overflow
from attncheck.model.subject import Subject

WEIGHTS, OVERFLOW = "weights-not-finite", "overflow"
DAMAGED_ADVICE = (
    "Load or train these weights again: no call and no precision can mend a number that is lost."
)


def overflow_advice(dtype: str) -> str:
    """What to do where a precision is too narrow."""
    return (
        f"Run it in bfloat16 or float32, whose range is larger than that of {dtype}, or keep this "
        "module in float32."
    )


def explained(subject: Subject, finding: Finding) -> Finding | None:
    """The finding with the tensor in which numbers are lost; None where a plain forward is finite.

    Raises:
        Unsupported: the model takes no plain forward.
    """
    found = overflow(subject, subject.inputs.row)
    if found is None or found.first is None:
        return None
    damaged = bad_weights(subject.model)
    if damaged:
        words = f"{damaged[0].name} holds {damaged[0].words}. {DAMAGED_ADVICE}"
        return _with(finding, WEIGHTS, damaged[0], words)
    words = (
        f"A plain forward is not finite, whatever it is compared with: "
        f"{found.words(subject.dtype_name)}."
    )
    return _with(finding, OVERFLOW, found.first, words)


def _with(finding: Finding, fault: str, first: NotFinite, words: str) -> Finding:
    place = Location(module=first.module, layer=layer_number(first.module))
    return replace(
        finding,
        diagnosis=Diagnosis(fault=fault, how="reproduced", residual=0.0, advice=words),
        location=place if first.module else None,
    )
