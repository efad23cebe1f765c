"""Derivatives of the logits along directions of the attention projections: by autograd, and by
central differences.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import final

import torch
from torch import Tensor, nn

from attncheck.attention.layers import PROJECTIONS, attention_modules
from attncheck.core.errors import Unsupported, first_line
from attncheck.model.gradients import frozen, mixture, room
from attncheck.model.placement import why_not_nudged
from attncheck.model.precision import widens
from attncheck.model.refusal import REFUSALS
from attncheck.model.subject import Subject
from attncheck.numerics.budget import HEADROOM
from attncheck.numerics.rebuilt import Rebuilding
from attncheck.numerics.shift import Direction, Shift, drawn


def projections(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """The weights of the query, key and value projections of every attention module, by kind."""
    found: dict[str, dict[int, nn.Parameter]] = {}  # by identity: layers may share a weight
    for module in attention_modules(model).values():
        for kind, (name, child) in product(PROJECTIONS, module.named_children()):
            for weight in child.parameters() if PROJECTIONS[kind].match(name) else ():
                if weight.ndim == 2 and weight.is_floating_point():
                    found.setdefault(kind, {}).setdefault(id(weight), weight)
    return {kind: list(weights.values()) for kind, weights in found.items()}


@final
@dataclass(frozen=True, kw_only=True)
class DirectionalDerivative:
    """A derivative along one direction: by autograd, by central difference, and how far the
    difference can be trusted.
    """

    analytic: float
    numeric: float
    trust: float

    @property
    def size(self) -> float:
        """The larger of both values."""
        return max(abs(self.analytic), abs(self.numeric))

    @property
    def budget(self) -> float:
        """How far both may differ."""
        return HEADROOM * self.trust

    @property
    def decides(self) -> bool:
        """Whether the difference can be trusted: at a kink, or of zero, it cannot."""
        return self.budget <= RESOLVED * self.size

    @property
    def wrong(self) -> bool:
        """Whether autograd gives another derivative than the central difference."""
        return self.decides and abs(self.analytic - self.numeric) > self.budget


RESOLVED = 1e-3
"""The part of a derivative that its budget may be at most."""
AGREED = 1e-6
"""Neighbouring steps that agree to this part need no smaller one."""
STEPS = (1e-3, 1e-4, 2.5e-5, 6e-6, 1.5e-6)
ENOUGH = 12
"""Tokens that suffice where the model has no boundary: what autograd keeps grows with them."""


def why_no_derivative(subject: Subject) -> str | None:
    """Why no weight of this model can be moved along a direction in float64, or None."""
    if subject.dtype != torch.float64 and not widens(subject.loaded.stored_dtype):
        return (
            f"central differences need float64, and {subject.dtype_name} weights cannot be "
            "computed with in it"
        )
    return why_not_nudged(subject.model)


def directional_derivative(subject: Subject, *kinds: str) -> DirectionalDerivative:
    """The derivative of a fixed mixture of the logits along one random direction of some kinds of
    projections, in float64. `why_no_derivative` must be None.

    Raises:
        Unsupported: a kernel has no gradient.
    """
    found, seed = projections(subject.model), subject.settings.seed * 31
    directions = [
        each for kind in kinds for each in drawn(found[kind], seed + list(PROJECTIONS).index(kind))
    ]
    return derivative_along(subject, directions)


def derivative_along(subject: Subject, directions: Sequence[Direction]) -> DirectionalDerivative:
    """The derivative of the same mixture along these directions together.

    Raises:
        Unsupported: a kernel has no gradient.
    """
    with _wide(subject) as wide:
        return _derivative(wide, directions)


def gradient_by_rows(subject: Subject, direction: Direction, columns: bool = False) -> Tensor:
    """What each row, or column, of a weight adds to the derivative along its direction, by
    autograd.

    Raises:
        Unsupported: a kernel has no gradient.
    """
    shape = (1, len(direction.right_I)) if columns else (len(direction.left_O), 1)
    step = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    with _wide(subject) as wide:
        return _by_autograd(wide, partial(_value, wide, [direction]), step).flatten()


@contextlib.contextmanager
def _wide(subject: Subject) -> Iterator[Subject]:
    """The subject in float64, its weights as they are."""
    with subject.at("float64", cast=False) as wide:
        try:
            yield wide
        except REFUSALS as error:
            raise Unsupported(f"a derivative in float64 raises {first_line(error)}") from error


def _value(subject: Subject, directions: Sequence[Direction], step: Tensor) -> Tensor:
    """The mixture of the logits with weights moved by a step."""
    inputs = subject.inputs
    row = inputs.row if inputs.boundaries else inputs.row[:ENOUGH]
    with subject.numerics(), Shift(directions, step):
        return mixture(subject, subject.passes.call((row,), use_cache=False).logits_BTV)


def _derivative(subject: Subject, directions: Sequence[Direction]) -> DirectionalDerivative:
    """The central difference is taken at several steps. The two neighbours that agree best give the
    value, and their distance (with the rounding of the mixture over the step) the trust: a kink
    keeps neighbours from agreeing.
    """
    value, size = partial(_value, subject, directions), 0.0
    start = torch.zeros((), dtype=torch.float64, requires_grad=True)
    analytic = float(_by_autograd(subject, value, start))
    values: list[float] = []
    for step in STEPS:
        steps = (torch.tensor(sign * step, dtype=torch.float64) for sign in (1, -1))
        with torch.no_grad():
            ahead, behind = (float(value(each)) for each in steps)
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


def _by_autograd(subject: Subject, value: Callable[[Tensor], Tensor], step: Tensor) -> Tensor:
    """Only the step has a gradient, no weight, so that autograd need not keep the weights."""
    with room(subject), torch.enable_grad(), frozen(subject.model), Rebuilding():
        total = value(step)
        if not total.requires_grad:
            return torch.zeros_like(step)
        (found,) = torch.autograd.grad(total, [step], allow_unused=True)
    return torch.zeros_like(step) if found is None else found
