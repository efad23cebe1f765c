"""Derivatives of the logits along directions of the attention projections: by autograd, and by
central differences.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from attncheck.attention.layers import PROJECTIONS, attention_modules
from attncheck.core.errors import Unsupported, first_line
from attncheck.model.gradients import frozen, mixture, room
from attncheck.model.passes import REFUSALS
from attncheck.model.placement import why_not_nudged
from attncheck.model.precision import widens
from attncheck.model.subject import Subject
from attncheck.numerics.rebuilt import Rebuilding
from attncheck.numerics.shift import Direction, Shift, drawn


def projections(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """The weights of the query, key and value projections of every attention module, by kind."""
    found: dict[str, list[nn.Parameter]] = {}
    for module in attention_modules(model).values():
        for kind, pattern in PROJECTIONS.items():
            children = [child for name, child in module.named_children() if pattern.match(name)]
            weights = [
                weight for child in children for weight in child.parameters() if weight.ndim == 2
            ]
            known = {id(each) for each in found.get(kind, [])}
            new = [
                weight
                for weight in weights
                if weight.is_floating_point() and id(weight) not in known
            ]
            if new:
                found.setdefault(kind, []).extend(new)
    return found


@final
@dataclass(frozen=True, kw_only=True)
class DirectionalDerivative:
    """A derivative along one direction: by autograd, by central difference, and how far the
    difference can be trusted.
    """

    analytic: float
    numeric: float
    trust: float


AGREED = 1e-6
"""Neighbouring steps that agree to this part need no smaller one."""
STEPS = (1e-3, 1e-4, 2.5e-5, 6e-6, 1.5e-6)


BORDERLESS = 12
"""Tokens that are enough where nothing changes with length: what autograd keeps in float64 grows
with them.
"""


def why_no_derivative(subject: Subject) -> str | None:
    """Why no weight of this model can be moved along a direction in float64, or None."""
    if subject.dtype != torch.float64 and not widens(subject.loaded.stored_dtype):
        return f"central differences need float64, and {subject.dtype_name} weights cannot be computed with in it"
    return why_not_nudged(subject.model)


def directional_derivative(subject: Subject, *kinds: str) -> DirectionalDerivative:
    """The derivative of a fixed mixture of the logits along one random direction of some kinds of
    projections, in float64.

    The central difference is taken at several steps; the two neighbours that agree best give the
    value, and their distance (with the rounding of the mixture over the step) the trust. A kink
    keeps neighbours from agreeing.

    `why_no_derivative` has to be asked first.

    Raises:
        Unsupported: a kernel has no gradient.
    """
    found, seed = projections(subject.model), subject.settings.seed * 31
    directions = [
        each for kind in kinds for each in drawn(found[kind], seed + list(PROJECTIONS).index(kind))
    ]
    with subject.at("float64", cast=False) as wide:
        try:
            return _slope(wide, directions)
        except REFUSALS as error:
            raise Unsupported(f"a derivative in float64 raises {first_line(error)}") from error


def _slope(subject: Subject, directions: Sequence[Direction]) -> DirectionalDerivative:
    inputs = subject.inputs
    row = inputs.row if inputs.boundaries else inputs.row[:BORDERLESS]

    def value(step: Tensor) -> Tensor:
        with subject.numerics(), Shift(directions, step):
            return mixture(subject, subject.passes.call((row,), use_cache=False).logits_BTV)

    analytic = _derivative(subject, value)
    size = 0.0
    values: list[float] = []
    for step in STEPS:
        with torch.no_grad():
            ahead, behind = (
                float(value(torch.tensor(sign * step, dtype=torch.float64))) for sign in (1, -1)
            )
        values.append((ahead - behind) / (2 * step))
        size = max(size, abs(ahead), abs(behind))
        if len(values) > 1 and abs(values[-1] - values[-2]) <= AGREED * abs(values[-1]):
            break
    near = min(range(len(values) - 1), key=lambda i: abs(values[i] - values[i + 1]))
    rounding = torch.finfo(torch.float64).eps * max(size, 1.0) / STEPS[near + 1]
    return DirectionalDerivative(
        analytic=analytic,
        numeric=values[near + 1],
        trust=abs(values[near] - values[near + 1]) + 16 * rounding,
    )


def _derivative(subject: Subject, value: Callable[[Tensor], Tensor]) -> float:
    """By autograd, which is told of no weight: only the step has a gradient, so weights need not be
    kept.
    """
    step = torch.zeros((), dtype=torch.float64, requires_grad=True)
    with room(subject), torch.enable_grad(), frozen(subject.model), Rebuilding():
        total = value(step)
        if not total.requires_grad:
            return 0.0
        (found,) = torch.autograd.grad(total, [step], allow_unused=True)
    return 0.0 if found is None else float(found)
