"""Whether a fault can be seen: does it move the logits of any call that a model takes beyond
rounding? Plain numerics; the probes have no part in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from attncheck.core.errors import CannotInject, Unsupported
from attncheck.model.forward_spec import ForwardSpec, Mask2D
from attncheck.model.padding import pad_rows
from attncheck.model.refusal import REFUSALS
from attncheck.model.subject import Subject
from attncheck.numerics.divergence import beyond, max_abs_diff
from attncheck.run.random_faults.inject import Injector

MARGIN = 100
"""A fault must move logits by this many budgets: less could be hidden by rounding elsewhere."""


def calls(subject: Subject) -> Iterator[ForwardSpec]:
    """The calls in which a fault may show: whole, in chunks, in steps, in a batch, padded, with a
    static cache, without a cache.
    """
    inputs = subject.inputs
    third, rest = inputs.length // 3, inputs.length - 2 * (inputs.length // 3)
    chunks, steps = (third, third, rest), (third, *(1,) * (inputs.length - third))
    rows = (*inputs.tokens, inputs.other(inputs.row, salt=3))
    yield ForwardSpec(inputs.tokens)
    yield ForwardSpec(inputs.tokens, use_cache=True)
    yield ForwardSpec(inputs.tokens, chunks=chunks)
    yield ForwardSpec(inputs.tokens, chunks=steps)
    yield ForwardSpec(rows)
    yield ForwardSpec(rows, chunks=chunks)
    yield ForwardSpec(rows, chunks=steps)
    yield ForwardSpec(inputs.tokens, chunks=chunks, cache_kind="static")
    padded = pad_rows(subject)
    yield padded.spec("left", explicit=bool(subject.can.takes_positions))
    yield padded.spec("left", explicit=bool(subject.can.takes_positions), chunks=chunks)


@final
@dataclass
class Healthy:
    """What a healthy model gives in each of the calls that it takes."""

    subject: Subject
    budget: float = 0.0
    logits: dict[ForwardSpec, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.budget = self.subject.budget.value
        for spec in calls(self.subject):
            try:
                self.logits[spec] = self.subject.logits(spec).clone()
            except (Unsupported, *REFUSALS):
                continue

    def moved(self, injector: Injector) -> float:
        """By how much the fault moves logits where it moves them most; 0 within rounding.

        Raises:
            CannotInject: the model has no place for it, or raises with it.
        """
        try:
            with injector.injected():
                return max(self._moved(spec) for spec in self.logits)
        except (Unsupported, *REFUSALS) as error:
            raise CannotInject(str(error)) from error

    def _moved(self, spec: ForwardSpec) -> float:
        got, want = self.subject.logits(spec), self.logits[spec]
        if isinstance(spec.mask, Mask2D):
            real_BT = torch.tensor(spec.mask.rows, device=got.device).bool()
            got, want = got[real_BT], want[real_BT]
        return max_abs_diff(got, want) if beyond(got, want, MARGIN * self.budget) else 0.0
