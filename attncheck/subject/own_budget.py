"""The budget of one model on its main input: what rounding alone does to its logits.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from attncheck.numerics.budget import Budget, measure_budget
from attncheck.numerics.tables import nudged, stored_tables
from attncheck.subject.buffers import buffers_of, changed, put_buffers_back
from attncheck.subject.inputs import Tokens
from attncheck.subject.passes import Pass, Passes


def own_budget(passes: Passes, tokens: Tokens, dtype: str, numerics: Callable[[], AbstractContextManager[Any]]) -> Budget:
    """Measure it on these tokens.

    A forward that changes a buffer would move the next one by more than rounding: each then starts from the same buffers.
    """
    model, ids_BT = passes.door.model, passes.ids(tokens)
    tables = (lambda: nudged(model)) if stored_tables(model) else None
    held = buffers_of(model)

    def forward() -> Tensor:
        with torch.no_grad():
            return passes._forward(ids_BT, use_cache=False).logits_BTV

    def anew() -> Tensor:
        put_buffers_back(model, held)
        return forward()

    budget = measure_budget(forward, passes.logits(Pass(tokens)), dtype, numerics, tables)
    if not changed(model, held):
        return budget
    with numerics():
        plain_BTV = anew()
    budget = measure_budget(anew, plain_BTV, dtype, numerics, tables)
    put_buffers_back(model, held)
    return budget
