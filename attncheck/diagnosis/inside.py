"""A leak whose place is an attention module: what that module does, proven by mending it.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from dataclasses import replace

from attncheck.core.finding import Diagnosis, Location
from attncheck.diagnosis.failure import Failure, max_diff_at
from attncheck.faults.registry import advice
from attncheck.model.forward_spec import ForwardSpec
from attncheck.observation.inside import InsideAttention
from attncheck.report.numbers import number


def leak_inside(failure: Failure, place: Location) -> Diagnosis:
    """What the attention modules of a model that reads ahead do wrong. It is proven where a forward
    with exactly that mended reads ahead no more.
    """
    seen = InsideAttention(failure.subject.model)
    mended = replace(failure.trusted, observer=seen.observe)
    inputs = failure.subject.inputs
    plain, moved = (
        ForwardSpec(tokens)
        for tokens in (inputs.tokens, (inputs.other(inputs.row, inputs.length - 1),))
    )
    with seen.merging():
        residual = max_diff_at(mended.logits(plain)[:, :-1], mended.logits(moved)[:, :-1])
    if not seen.sentence or residual > failure.budget:
        return _unproven(place)
    text = f"{seen.sentence[0].upper()}{seen.sentence[1:]}"
    text = f"{text}. With this mended no later token moves an earlier logit, to {number(residual)}."
    more = f" {advice(seen.family)}" if seen.family else ""
    return Diagnosis(
        fault="",
        how="measured",
        residual=residual,
        advice=f"{text}{more}",
        sentence=text,
        family=seen.family,
        parts=seen.parts,
    )


def _unproven(place: Location) -> Diagnosis:
    text = (
        f"{place.module} carries later tokens to earlier positions, and its queries, keys, weights "
        "and heads do not show how."
    )
    return Diagnosis(fault="", how="unexplained", advice=text, sentence=text)
