"""A wrong forward observed: what differs in it from the trusted path, proven by reproduction.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor, nn

from attncheck.core.observed_part import ObservedPart
from attncheck.faults.engine.expected import chunk_bounds
from attncheck.faults.engine.trusted import Trusted
from attncheck.model.forward_spec import ForwardSpec, Mask2D, Mask4D
from attncheck.numerics.divergence import max_abs, max_abs_diff
from attncheck.observation.between_calls import left_by_calls
from attncheck.observation.convolutions import ConvolutionStates, convolution_inputs
from attncheck.observation.deviation import Deviation
from attncheck.observation.documents import documents_of
from attncheck.observation.explaining import Explaining
from attncheck.observation.ledger import ledger_of
from attncheck.observation.names import named
from attncheck.observation.sequence import Sequence
from attncheck.observation.states import changed_states, coarse_states, left_states
from attncheck.observation.summary import Extent, Group, grouped_parts
from attncheck.observation.words import sentence, worded

ROUNDINGS = 1e3
BUDGETS = 4
PROJECTED = frozenset({"queries", "keys", "values"})
MODULES = 8
"""So many modules outside attention are explained at most."""


@final
@dataclass(frozen=True, kw_only=True)
class Observation:
    """What was measured of one wrong forward.

    `predicted_BTV` are the logits of the trusted path with exactly these parts. `opaque` says that
    some part was taken over from the failing forward without being explained. `modules` names the
    attention of each layer. `faults` are those of the catalogue that all parts together amount to.
    """

    predicted_BTV: Tensor
    groups: tuple[Group, ...]
    opaque: bool
    sentence: str
    faults: tuple[str, ...]
    family: str
    modules: Mapping[int, str]

    @property
    def parts(self) -> tuple[ObservedPart, ...]:
        """The parts without their single deviations."""
        return tuple(group.part for group in self.groups)


def observed(
    trusted: Trusted,
    spec: ForwardSpec,
    run: Callable[[], object],
    right_BTV: Tensor,
    agrees: Callable[[Tensor], bool],
    part: Sequence | None = None,
) -> Observation:
    """What a wrong forward over `spec`, made by `run`, has been given and gave.

    `right_BTV` are the trusted path's logits; `agrees` says whether logits are the observed ones.
    With a `part` only that sequence of the forward is explained, against the same sequence alone.
    Raises what the model raises.
    """
    subject = trusted.subject
    relative = _relative(trusted, right_BTV)
    ledger = ledger_of(subject, run)
    whole, spec = spec, spec if part is None else part.alone(spec)
    explaining = Explaining(trusted, spec, ledger, relative, part, whole)
    predicted_BTV = explaining.logits()
    for _ in range(MODULES):
        # what attention could not explain may come from a module before it
        done = agrees(predicted_BTV) and not explaining.opaque
        if done or not explaining.explain_module(run):
            break
        predicted_BTV = explaining.logits()
    predicted_BTV = _before_projections(explaining, run, predicted_BTV, agrees)
    found, opaque = explaining.deviations, explaining.opaque
    if not agrees(predicted_BTV):
        last = explaining.changed_logits(run, predicted_BTV)
        if last is not None:
            predicted_BTV = last.states_BTW
            found, opaque = [*found, *last.deviations], opaque or last.opaque
    extent = extent_of(trusted, spec, frozenset(explaining.attended))
    return _observation(found, extent, predicted_BTV, opaque, explaining.attended)


def observed_alone(
    trusted: Trusted, spec: ForwardSpec, run: Callable[[], object]
) -> Observation | None:
    """What each row of a wrong forward, made by `run`, has been given and gave, against the same
    row alone; None where that gives the logits of the batch. For faults that depend on the batch or
    its padding, which the trusted path has as well.
    """
    if isinstance(spec.mask, Mask4D):
        return None
    ledger, usual_BTV = ledger_of(trusted.subject, run), trusted.logits(spec)
    predicted_BTV, found = torch.zeros_like(usual_BTV), list[Deviation]()
    relative = _relative(trusted, usual_BTV)
    attended, opaque = dict[int, str](), False
    for part in (Sequence.of(spec, row) for row in range(len(spec.tokens))):
        explaining = Explaining(trusted, part.alone(spec), ledger, relative, part, spec)
        alone_BTV = _before_projections(explaining, run, explaining.logits())
        predicted_BTV[part.row, part.first : part.last] = alone_BTV[0]
        found += map(part.in_batch, explaining.deviations)
        attended |= explaining.attended
        opaque |= explaining.opaque
    if not found:
        return None
    extent = extent_of(trusted, spec, frozenset(attended))
    return _observation(found, extent, predicted_BTV, opaque, attended)


def _before_projections(
    explaining: Explaining,
    run: Callable[[], object],
    predicted_BTV: Tensor,
    agrees: Callable[[Tensor], bool] = lambda logits_BTV: True,
) -> Tensor:
    """The predicted logits, with what enters the projections of a layer in the place of queries,
    keys and values that are changed alike, where that says all.
    """
    known = list(explaining.changed)
    if not _changed_alike(explaining.deviations) or not explaining.explain_module(run):
        return predicted_BTV
    other_BTV = explaining.logits()
    if agrees(other_BTV) and not explaining.opaque and not _changed_alike(explaining.deviations):
        return other_BTV
    explaining.changed = known
    return explaining.logits()


def _changed_alike(deviations: Iterable[Deviation]) -> bool:
    """Whether queries, keys and values of one layer are changed in one way that is known."""
    found: dict[tuple[int, str, float | None], set[str]] = defaultdict(set)
    for each in deviations:
        if not each.opaque:
            # a norm of queries and keys takes a factor away again
            amount = None if each.how == "scaled" else each.amount
            found[each.layer, each.how, amount].add(each.what)
    return any(whats >= PROJECTED for whats in found.values())


def _relative(trusted: Trusted, logits_BTV: Tensor) -> float:
    """The difference that rounding explains, as a share of the largest value."""
    size = max_abs(logits_BTV[logits_BTV.isfinite()])
    return max(
        ROUNDINGS * torch.finfo(trusted.subject.dtype).eps,
        BUDGETS * trusted.subject.budget.value / max(size, 1e-30),
    )


def observed_states(
    trusted: Trusted, spec: ForwardSpec, run: Callable[[], Tensor]
) -> Observation | None:
    """Recurrent states that change between two calls of a wrong forward, made by `run`, and
    convolution states of other tokens than the newest; None where all are right. `predicted_BTV`
    are its logits with each state repaired.
    """
    relative = ROUNDINGS * torch.finfo(trusted.subject.dtype).eps
    found, repaired_BTV = changed_states(trusted.subject.model, run, relative)
    convolutions = _convolutions(trusted, spec, relative) if repaired_BTV is None else None
    if convolutions is not None:
        found, repaired_BTV = left_states(trusted.subject.model, run, convolutions)
    if repaired_BTV is None:
        return None
    layers = frozenset(range(trusted.subject.facts.layers or 0))
    opaque = any(each.opaque for each in found)
    return _observation(found, extent_of(trusted, spec, layers), repaired_BTV, opaque, {})


def observed_between(
    trusted: Trusted, spec: ForwardSpec, right_BTV: Tensor | None, budget: float
) -> tuple[Observation, float] | None:
    """What calls leave in a cache of any kind that another way to the same token leaves otherwise,
    and how far the logits with that put back are from the right ones; None where they are not
    right.
    """
    if right_BTV is None:
        return None
    relative = ROUNDINGS * torch.finfo(trusted.subject.dtype).eps
    layers = frozenset(range(trusted.subject.facts.layers or 0))
    for found, repaired_BTV in left_by_calls(trusted.subject, spec, relative):
        residual = max_abs_diff(repaired_BTV, right_BTV)
        if found and residual <= budget:
            extent = extent_of(trusted, spec, layers)
            return _observation(found, extent, repaired_BTV, False, {}), residual
    return None


def with_coarse_states(
    seen: Observation, trusted: Trusted, spec: ForwardSpec, run: Callable[[], object]
) -> Observation:
    """The observation with the states that a half precision holds whole, if there are any: no
    repair gives back what was rounded away.
    """
    found = coarse_states(trusted.subject.model, run)
    if not found:
        return seen
    layers = frozenset(range(trusted.subject.facts.layers or 0))
    extent = extent_of(trusted, spec, layers)
    groups = (*worded(grouped_parts(found, extent), extent), *seen.groups)
    return replace(seen, groups=groups, sentence=sentence(groups), family=named(groups, extent)[1])


def _convolutions(trusted: Trusted, spec: ForwardSpec, relative: float) -> ConvolutionStates | None:
    """What convolution states should hold; None where the model has none, or padding stands between
    the tokens that they are of.
    """
    model = trusted.subject.model
    if spec.mask is not None or not any(isinstance(each, nn.Conv1d) for each in model.modules()):
        return None
    with torch.no_grad():
        inputs = convolution_inputs(model, lambda: trusted.plain_logits(spec), spec.length)
    return ConvolutionStates(inputs, relative) if inputs else None


def _observation(
    found: list[Deviation],
    extent: Extent,
    predicted_BTV: Tensor,
    opaque: bool,
    modules: Mapping[int, str],
) -> Observation:
    groups = worded(grouped_parts(found, extent), extent)
    faults, family = named(groups, extent)
    return Observation(
        predicted_BTV=predicted_BTV,
        groups=tuple(groups),
        opaque=opaque,
        sentence=sentence(groups),
        faults=faults,
        family=family,
        modules=modules,
    )


def extent_of(trusted: Trusted, spec: ForwardSpec, layers: frozenset[int]) -> Extent:
    """The layers, sequences and calls of the failing forward."""
    mask = spec.mask.rows if isinstance(spec.mask, Mask2D) else ()
    return Extent(
        layers=layers,
        rows=len(spec.tokens),
        length=spec.length,
        starts=tuple(start for start, _ in chunk_bounds(spec)),
        window=trusted.subject.facts.window,
        padding=frozenset(
            (row, token)
            for row, real in enumerate(mask)
            for token, is_real in enumerate(real)
            if not is_real
        ),
        documents=documents_of(spec.positions),
    )
