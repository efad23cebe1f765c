"""The budget of one pass: what rounding alone does to its logits.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from attncheck.attention.rotary_tables import nudged, stored_tables
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.passes import Passes
from attncheck.model.weights import buffers_of, changed, put_buffers_back
from attncheck.numerics.budget import Budget, measure_budget

Numerics = Callable[[], AbstractContextManager[Any]]


def own_budget(
    passes: Passes,
    spec: ForwardSpec,
    dtype: str,
    numerics: Numerics,
    positions: tuple[int, ...] = (),
) -> Budget:
    """Measure it on one pass, once; on some positions of a long row only.

    A forward that changes a buffer would move the next one by more than rounding: each then starts
    from the same buffers.
    """
    key = (spec, positions)
    if key not in passes.budgets:
        passes.budgets[key] = _measured(passes, spec, dtype, numerics, positions)
    return passes.budgets[key]


def _measured(
    passes: Passes, spec: ForwardSpec, dtype: str, numerics: Numerics, positions: tuple[int, ...]
) -> Budget:
    model = passes.forward_adapter.model
    tables = (lambda: nudged(model)) if stored_tables(model) else None
    held = buffers_of(model)

    def forward() -> Tensor:
        with torch.no_grad():
            return passes.run(spec, positions)

    def anew() -> Tensor:
        put_buffers_back(model, held)
        return forward()

    budget = measure_budget(forward, passes.logits(spec, positions), dtype, numerics, tables)
    if not changed(model, held):
        return budget
    with numerics():
        plain_BTV = anew()
    budget = measure_budget(anew, plain_BTV, dtype, numerics, tables)
    put_buffers_back(model, held)
    return budget
