"""A wrong forward observed: what differs in it from the trusted path, proven by reproduction.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from attncheck.core.finding import ObservedPart
from attncheck.faults.engine.expected import chunk_bounds
from attncheck.faults.engine.trusted import Trusted
from attncheck.model.forward_spec import ForwardSpec, Mask2D
from attncheck.numerics.divergence import max_abs
from attncheck.observation.alone import lone_rows
from attncheck.observation.deviation import Deviation
from attncheck.observation.explaining import Explaining
from attncheck.observation.ledger import ledger_of
from attncheck.observation.modules import ModuleReturns
from attncheck.observation.names import named
from attncheck.observation.states import changed_states
from attncheck.observation.summary import Extent, Group, grouped_parts
from attncheck.observation.words import sentence, worded

ROUNDINGS = 1e3
BUDGETS = 4


@final
@dataclass(frozen=True, kw_only=True)
class Observation:
    """What was measured of one wrong forward.

    `predicted_BTV` are the logits of the trusted path with exactly these parts. `opaque` says that
    some part was taken over from the failing forward without being explained. `faults` are those of
    the catalogue that all parts together amount to. `module` is the first that differs, where that
    is not known otherwise.
    """

    predicted_BTV: Tensor
    groups: tuple[Group, ...]
    opaque: bool
    sentence: str
    faults: tuple[str, ...]
    family: str
    module: str = ""

    @property
    def parts(self) -> tuple[ObservedPart, ...]:
        """The parts without their single deviations."""
        return tuple(group.part for group in self.groups)


def observed(
    trusted: Trusted,
    spec: ForwardSpec,
    run: Callable[[], object],
    right_BTV: Tensor,
    module: str | None = None,
) -> Observation:
    """What a wrong forward over `spec`, made by `run`, has been given and gave.

    `right_BTV` are the trusted path's logits. `module` is one outside attention that may return
    something else as well ("" for the whole model). Raises what the model raises.
    """
    subject, relative = trusted.subject, _relative(trusted, right_BTV)
    returns = None if module is None else _returns(trusted, spec, relative, module)
    with returns.recorded() if returns else contextlib.nullcontext():
        ledger = ledger_of(subject, run)
    explaining = Explaining(trusted, spec, ledger, relative)
    with returns.replaced() if returns else contextlib.nullcontext():
        predicted_BTV = explaining.logits()
    extent = extent_of(trusted, spec, frozenset(explaining.attended))
    found = [*explaining.deviations, *(returns.deviations if returns else ())]
    opaque = explaining.opaque or bool(returns and returns.opaque)
    return _observation(found, extent, predicted_BTV, opaque)


def observed_alone(
    trusted: Trusted, spec: ForwardSpec, run: Callable[[], object]
) -> Observation | None:
    """What each row of a wrong forward, made by `run`, has been given and gave, against the same
    row alone; None where that gives the logits of the batch. For faults that depend on the batch or
    its padding, which the trusted path has as well.
    """
    rows = lone_rows(spec)
    if not rows:
        return None
    ledger, usual_BTV = ledger_of(trusted.subject, run), trusted.logits(spec)
    predicted_BTV, found = torch.zeros_like(usual_BTV), list[Deviation]()
    attended, opaque = set[int](), False
    for each in rows:
        relative = _relative(trusted, usual_BTV)
        explaining = Explaining(trusted, each.spec, each.of(ledger), relative)
        predicted_BTV[each.row, each.padding :] = explaining.logits()[0]
        found += map(each.in_batch, explaining.deviations)
        attended |= explaining.attended
        opaque |= explaining.opaque
    if not found:
        return None
    first = min(each.layer for each in found)
    seen = _observation(found, extent_of(trusted, spec, frozenset(attended)), predicted_BTV, opaque)
    return replace(seen, module=ledger.module_of(first, trusted.layer))


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
    """Recurrent states that change between two calls of a wrong forward, made by `run`; None where
    none do. `predicted_BTV` are its logits with each state put back.
    """
    relative = ROUNDINGS * torch.finfo(trusted.subject.dtype).eps
    found, repaired_BTV = changed_states(trusted.subject.model, run, relative)
    if repaired_BTV is None:
        return None
    layers = frozenset(range(trusted.subject.facts.layers or 0))
    opaque = any(each.opaque for each in found)
    return _observation(found, extent_of(trusted, spec, layers), repaired_BTV, opaque)


def _observation(
    found: list[Deviation], extent: Extent, predicted_BTV: Tensor, opaque: bool
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
    )


def _returns(trusted: Trusted, spec: ForwardSpec, relative: float, module: str) -> ModuleReturns:
    real_BT = torch.tensor(spec.mask.rows).bool() if isinstance(spec.mask, Mask2D) else None
    return ModuleReturns(module, trusted.subject.model.get_submodule(module), relative, real_BT)


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
    )
