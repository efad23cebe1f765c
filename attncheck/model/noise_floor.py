"""The budget of one forward: what rounding alone does to its logits.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from attncheck.attention.rotary_tables import nudged, stored_tables
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.passes import Passes
from attncheck.model.precision import name_of
from attncheck.model.quantized import other_rounding, quantized_layers
from attncheck.model.weights import SavedBuffers, buffers_of, changed
from attncheck.numerics.budget import Budget, Roundings, measure_budget

SEED = 7


def own_budget(passes: Passes, spec: ForwardSpec, positions: tuple[int, ...] = ()) -> Budget:
    """Measure it once, on all positions or on some of a long row only."""
    key, faults = (spec, positions), passes.faults(spec)
    if key in passes.budgets:  # a healthy one, which a fault has no part in
        return passes.budgets[key]
    if (*key, faults) not in passes.budgets:
        passes.budgets[(*key, faults) if faults else key] = _measured(passes, spec, positions)
    return passes.budgets[(*key, faults) if faults else key]


def _measured(passes: Passes, spec: ForwardSpec, positions: tuple[int, ...]) -> Budget:
    model, dtype = passes.forward_adapter.model, name_of(passes.dtype)
    others = _others(model)
    before, saved = buffers_of(model), SavedBuffers(model)

    def forward() -> Tensor:
        with torch.no_grad():
            return passes.run(spec, positions)

    def anew() -> Tensor:
        saved.put_back()
        return forward()

    plain_BTV = passes.logits(spec, positions)
    budget = measure_budget(forward, plain_BTV, dtype, passes.context, others)
    if not changed(model, before):
        return budget
    # a forward that changes a buffer moves the next one by more than rounding: each has to start
    # from the same buffers
    with passes.context():
        plain_BTV = anew()
    budget = measure_budget(anew, plain_BTV, dtype, passes.context, others)
    saved.put_back()
    return budget


def _others(model: nn.Module) -> Roundings:
    """What rounds in a model beside its operators."""
    others: dict[str, Callable[[], AbstractContextManager[object]]] = {}
    if stored_tables(model):
        others["stored tables"] = lambda: nudged(model)
    if quantized_layers(model):
        others["quantized layers"] = lambda: other_rounding(model, SEED)
    return others
