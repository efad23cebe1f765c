"""A wrong forward observed: what differs in it from the trusted path, proven by reproduction.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from attncheck.core.finding import ObservedPart
from attncheck.faults.engine.expected import chunk_bounds
from attncheck.faults.engine.trusted import Trusted
from attncheck.model.forward_spec import ForwardSpec, Mask2D
from attncheck.numerics.divergence import max_abs
from attncheck.observation.explaining import Explaining
from attncheck.observation.ledger import Ledger, ledger_of
from attncheck.observation.names import named
from attncheck.observation.sequence import Sequence
from attncheck.observation.summary import Extent, Group, grouped_parts
from attncheck.observation.words import sentence, worded

ROUNDINGS = 1e3
BUDGETS = 4
MODULES = 3
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
    ledger = ledger_of(subject, run)
    size = max_abs(right_BTV[right_BTV.isfinite()])
    relative = max(
        ROUNDINGS * torch.finfo(subject.dtype).eps,
        BUDGETS * subject.budget.value / max(size, 1e-30),
    )
    whole, spec = spec, spec if part is None else part.alone(spec)
    explaining = Explaining(trusted, spec, ledger, relative, part, whole)
    predicted_BTV = explaining.logits()
    for _ in range(MODULES):
        if agrees(predicted_BTV) or not explaining.explain_module(run):
            break
        predicted_BTV = explaining.logits()
    extent = extent_of(explaining, ledger)
    groups = worded(grouped_parts(explaining.deviations, extent), extent)
    faults, family = named(groups, extent)
    return Observation(
        predicted_BTV=predicted_BTV,
        groups=tuple(groups),
        opaque=explaining.opaque,
        sentence=sentence(groups),
        faults=faults,
        family=family,
        modules=explaining.attended,
    )


def extent_of(explaining: Explaining, ledger: Ledger) -> Extent:
    """The layers, sequences and calls of the failing forward."""
    spec = explaining.spec
    mask = spec.mask.rows if isinstance(spec.mask, Mask2D) else ()
    return Extent(
        layers=frozenset(explaining.attended),
        rows=len(spec.tokens),
        length=spec.length,
        starts=tuple(start for start, _ in chunk_bounds(spec)),
        window=explaining.trusted.subject.facts.window,
        padding=frozenset(
            (row, token)
            for row, real in enumerate(mask)
            for token, is_real in enumerate(real)
            if not is_real
        ),
    )
