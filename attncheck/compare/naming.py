"""What is wrong in one of two models, by name and with its proof.

A decoder is read from the reference and edited until it computes the other model's logits. The
edits are then what the other model does otherwise; a fault without that proof gets no name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from attncheck.compare.decoder.observed import Observed
from attncheck.compare.decoder.reading import read_decoder
from attncheck.compare.decoder.spec import DecoderSpec
from attncheck.compare.edits.edit import ROUNDING_ONLY
from attncheck.compare.flow import FlowTape, taped
from attncheck.compare.folding import as_rounded
from attncheck.compare.gaps import words_of
from attncheck.compare.peel import Peeled, Peeler, StagedEdit
from attncheck.compare.stage import EMBEDDING, HEAD, Port, port_of
from attncheck.core.errors import Unsupported, first_line
from attncheck.model.inputs import Tokens
from attncheck.model.refusal import REFUSALS
from attncheck.model.subject import Subject
from attncheck.report.numbers import number

SLACKS = (1e-9, 1e-6, 1e-5)
"""Relative errors up to which values count as the same: rounding of float64, of tables that one
side keeps in float32, and of what grows from them.
"""
FINE = 1e-6
SWAPPED = "window-layers-swapped"
WINDOWS = ("window-ignored", "window-length", SWAPPED)
WHOLE = {EMBEDDING: "embedding", HEAD: "head"}


@final
@dataclass(frozen=True, kw_only=True)
class NamedFault:
    """One fault: its name, the sentence, the module of the reference that it stands in and the one
    of the other model, and the first layer of all `layers` that have it.
    """

    name: str
    sentence: str
    module: str
    other_module: str
    layer: int | None
    layers: tuple[int, ...] = ()


@final
@dataclass(frozen=True, kw_only=True)
class Explanation:
    """The faults that together make one model's logits the other's to `residual`, relative to
    their size `scale`; `rounding` says that only rounding was between them.

    Where nothing was proven, `reason` says why, and `module` and `layer` where the search stopped;
    `unreadable` that the reference could not be written out. With `swapped`, the second model was
    the reference. `begun` says that the other model has at least the embeddings, and
    `alignment` which of its modules holds each value of the reference.
    """

    faults: tuple[NamedFault, ...] = ()
    residual: float = float("inf")
    scale: float = 1.0
    rounding: bool = False
    reason: str = ""
    module: str = ""
    layer: int | None = None
    unreadable: bool = False
    swapped: bool = False
    alignment: tuple[tuple[str, str], ...] = ()
    begun: bool = True


def explain(reference: Subject, other: Subject, rows: Tokens) -> Explanation:
    """Why the logits of `other` are not those of `reference`, on rows of one length; on one row
    where the other model seems to compute each by itself.
    """
    found = _explain(reference, other, rows)
    if found.begun or found.unreadable or len(rows) < 2:
        return found
    alone = _explain(reference, other, rows[:1])
    return alone if alone.begun else found


def _explain(reference: Subject, other: Subject, rows: Tokens) -> Explanation:
    with contextlib.ExitStack() as stack:
        try:
            first = stack.enter_context(reference.at("float64"))
            with first.numerics():
                spec, observed = read_decoder(first, rows)
        except (*REFUSALS, Unsupported) as error:
            why = f"the reference cannot be written out: {first_line(error)}"
            return Explanation(reason=why, unreadable=True)
        stated = other.dtype_name
        try:
            view = stack.enter_context(other.at("float64"))
            tape, logits_BTV = tape_of(view, rows)
        except (*REFUSALS, Unsupported) as error:
            return Explanation(reason=f"the other model refuses float64: {first_line(error)}")
        spec = as_rounded(spec, view.model, stated)
        return _best(spec, observed, view, tape, logits_BTV)


def tape_of(subject: Subject, rows: Tokens) -> tuple[FlowTape, Tensor]:
    """Every value of one forward of a subject that is at float64, and its logits_BTV."""
    least = len(rows) * len(rows[0])
    with torch.no_grad(), subject.numerics(), taped(subject.model, least) as tape:
        output = subject.passes.call(rows, use_cache=False)
    return tape, output.logits_BTV.detach().cpu().double()


def _best(
    spec: DecoderSpec, observed: Observed, other: Subject, tape: FlowTape, logits_BTV: Tensor
) -> Explanation:
    """The explanation under the finest slack that proves one, else under the one that comes
    furthest.
    """
    found: list[tuple[tuple[float, ...], Explanation]] = []
    for slack in SLACKS:
        port = port_of(other.model, tape, logits_BTV, slack)
        with torch.no_grad():
            peeled = Peeler(observed.ids_BT, port).peel(spec)
        explanation = replace(_explained(spec, peeled, port), alignment=tuple(_aligned(peeled)))
        # a small fault is as small as this slack: what has no fault under it is not proven the same
        if not explanation.reason and (explanation.faults or slack <= FINE):
            return explanation
        if slack > FINE:
            explanation = replace(explanation, faults=())
        found.append(((*peeled.reach, slack <= FINE, -len(peeled.gaps), slack), explanation))
    return max(found, key=lambda each: each[0])[1]


def _explained(spec: DecoderSpec, peeled: Peeled, port: Port) -> Explanation:
    scale = float(port.logits_BTV.abs().max())
    proven = peeled.residual <= port.slack * scale
    faults = tuple(_faults(peeled, len(spec.layers))) if proven else ()
    if proven and not peeled.gaps:
        return Explanation(
            faults=faults, residual=peeled.residual, scale=scale, rounding=not faults
        )
    if not peeled.gaps:
        reason = f"the logits with all faults put right are still {number(peeled.residual)} away"
        return Explanation(reason=reason, residual=peeled.residual, scale=scale)
    return Explanation(
        faults=faults,
        reason=_reason(peeled, proven),
        module=peeled.gaps[0].module,
        layer=peeled.gaps[0].stage if peeled.gaps[0].stage >= 0 else None,
        residual=peeled.residual,
        scale=scale,
        begun=peeled.gaps[0].stage != EMBEDDING or peeled.gaps[0].bridged,
    )


def _aligned(peeled: Peeled) -> Iterator[tuple[str, str]]:
    """Each value of the reference in words, and the module of the other model that has it."""
    for stage, part, module in peeled.aligned:
        where = WHOLE.get(stage, f"layer {stage}")
        yield f"{where}, {words_of(part)}", module or "(outside of its modules)"


def _reason(peeled: Peeled, proven: bool) -> str:
    """What is known of stages that no edit explains."""
    first = peeled.gaps[0]
    where = f"layer {first.stage}" if first.stage >= 0 else WHOLE[first.stage]
    text = f"no change that is known makes {where}, {words_of(first.part)}, what it is"
    if not first.bridged:
        return text
    text += f"; its output is {first.share:.1%} away from position {first.position} on"
    if len(peeled.gaps) > 1:
        others = ", ".join(str(each.stage) for each in peeled.gaps if each.stage >= 0)
        text += f", as in layers {others}"
    if proven:
        them = "them" if len(peeled.gaps) > 1 else "it"
        text += f"; with the other model's own output of {them} put in, all logits are equal to "
        text += f"{number(peeled.residual)}, so that nothing else differs"
    return text


def _faults(peeled: Peeled, layers: int) -> Iterator[NamedFault]:
    groups: dict[str, list[StagedEdit]] = {}
    swapped = windows_swapped(peeled)
    for each in peeled.edits:
        if each.edit.name != ROUNDING_ONLY:
            name = SWAPPED if swapped and each.edit.name in WINDOWS else each.edit.name
            renamed = replace(each, edit=replace(each.edit, name=name))
            groups.setdefault(f"{name} {each.edit.part}", []).append(renamed)
    for group in groups.values():
        yield _fault(group, peeled.residual, layers, len(groups))


def windows_swapped(peeled: Peeled) -> bool:
    """Whether one layer lost a window and another one got one."""
    found = {each.edit.name for each in peeled.edits if each.edit.name in WINDOWS}
    return "window-ignored" in found and len(found) > 1


def _fault(group: list[StagedEdit], residual: float, layers: int, faults: int) -> NamedFault:
    first = group[0]
    stages = sorted({each.stage for each in group})
    inner = tuple(stage for stage in stages if stage >= 0)
    where = where_of(first, inner, layers)
    others = " with the other faults put right" if faults > 1 else ""
    proof = f"{first.edit.cure} makes all logits equal to {number(residual)}{others}"
    return NamedFault(
        name=first.edit.name,
        sentence=f"{where}: {first.edit.words} ({proof})",
        module=first.edit.module,
        other_module=first.place,
        layer=inner[0] if inner else None,
        layers=inner,
    )


def where_of(first: StagedEdit, inner: tuple[int, ...], layers: int) -> str:
    """The place of a fault in words: its first layer and part, and how many layers have it."""
    if not inner:
        norm = first.edit.part == "norm" and first.stage == HEAD
        return "final norm" if norm else WHOLE[first.stage]
    part = {"mlp": " feed-forward block", "layer": ""}.get(first.edit.part, f" {first.edit.part}")
    where = f"layer {inner[0]}{part}"
    if len(inner) == 1:
        return where
    count = (
        f"all {layers} layers" if len(inner) == layers else "layers " + ", ".join(map(str, inner))
    )
    return f"{where}, as in {count}"
