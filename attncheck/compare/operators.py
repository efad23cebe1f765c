"""What differs between two models of any architecture, operator by operator.

A decoder that is read from the reference says more about its parts; what it cannot say, or cannot
be read at all, is looked for among the reference's operators.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from attncheck.compare import naming
from attncheck.compare.naming import SLACKS, Explanation, NamedFault, tape_of
from attncheck.compare.program.record import Program, recorded
from attncheck.compare.program.search import Found, Outcome, layer_of, search
from attncheck.compare.stage import Port, port_of
from attncheck.core.errors import Unsupported
from attncheck.model.compat import static_experts
from attncheck.model.inputs import Tokens
from attncheck.model.refusal import REFUSALS
from attncheck.model.subject import Subject
from attncheck.report.numbers import number


def explain(reference: Subject, other: Subject, rows: Tokens) -> Explanation:
    """Why the logits of `other` are not those of `reference`, on rows of one length."""
    found = naming.explain(reference, other, rows)
    if not found.reason:
        return found
    try:
        with reference.at("float64") as one, other.at("float64") as two:
            by_operators = _explained(one, two, rows)
    except (*REFUSALS, Unsupported):
        return found
    if by_operators.faults or by_operators.rounding or found.unreadable:
        return by_operators
    return found


def _explained(reference: Subject, other: Subject, rows: Tokens) -> Explanation:
    """The explanation under the finest slack that proves one, else that of the last one."""
    program = program_of(reference, rows)
    tape, logits_BTV = tape_of(other, rows)
    for slack in SLACKS[:2]:
        port = port_of(other.model, tape, logits_BTV, slack)
        with torch.no_grad():
            outcome = search(program, port)
        if outcome.residual <= port.slack * float(logits_BTV.abs().max()):
            return _proven(outcome, port)
    return _unproven(outcome, port)


def program_of(subject: Subject, rows: Tokens) -> Program:
    """The operators of one forward of a subject that is at float64.

    Raises:
        Unsupported: they cannot be kept.
    """
    with (
        torch.no_grad(),
        subject.numerics(),
        static_experts(subject.model),  # what each token reads is then data and no control flow
        recorded(subject.model) as recorder,
    ):
        output = subject.passes.call(rows, use_cache=False)
        recorder.program.logits = recorder.slot_of(output.logits_BTV)
    return recorder.program


def _proven(outcome: Outcome, port: Port) -> Explanation:
    faults = tuple(_faults(outcome))
    scale = float(port.logits_BTV.abs().max())
    return Explanation(
        faults=faults, residual=outcome.residual, scale=scale, rounding=not outcome.faults
    )


def _faults(outcome: Outcome) -> Iterator[NamedFault]:
    more = " with the other faults put right" if len(outcome.faults) > 1 else ""
    for each in outcome.faults:
        layers = tuple(sorted({n for place in each.places if (n := layer_of(place)) is not None}))
        proof = f"{each.change.cure} makes all logits equal to {number(outcome.residual)}{more}"
        yield NamedFault(
            name=each.change.name,
            sentence=f"{_where(each, layers)}: {each.change.words} ({proof})",
            module=each.places[0],
            other_module="",
            layer=layers[0] if layers else None,
            layers=layers,
        )


def _where(found: Found, layers: tuple[int, ...]) -> str:
    if not layers:
        return found.places[0] or "outside of its modules"
    others = f", as in layers {', '.join(map(str, layers))}" if len(layers) > 1 else ""
    return f"layer {layers[0]}{others}"


def _unproven(outcome: Outcome, port: Port) -> Explanation:
    known = [f"{each.change.words} ({each.change.name})" for each in outcome.faults]
    reason = f"no change that is known makes {outcome.stopped or 'the logits'} what it is"
    if known:
        reason = f"what is found so far: {'; '.join(known)}; then {reason}"
    first = next((each.places[0] for each in outcome.faults), outcome.stopped)
    return Explanation(
        reason=reason,
        module=first,
        layer=layer_of(first),
        residual=outcome.residual,
        scale=float(port.logits_BTV.abs().max()),
        begun=outcome.begun,
    )
