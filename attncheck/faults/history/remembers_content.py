"""What it is
    A row gets the answer of another one that is taken for the same.

How it looks
    A prompt is answered as if its words stood in another order; alone in a fresh process it is
    right.

Where it comes from
    A memory of prompts or prefixes whose key is too short: a sum or hash of the ids, the first
    block, the length.

What to change
    Compare the tokens themselves before anything is reused.

Axes: B batch, T positions.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from attncheck.faults.engine import Fault, Injected, injection
from attncheck.model.subject import Subject

BLOCK = 4


def inject(subject: Subject) -> Injected:
    """Rows of the same shape, sum and first tokens run as the first of them that was seen."""
    memory: dict[tuple[Any, ...], Tensor] = {}
    name = subject.forward_adapter.ids_name

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        ids_BT = call.get(name)
        if not isinstance(ids_BT, Tensor) or injection.tokens_before(subject, call):
            return call
        first = tuple(ids_BT[:, :BLOCK].flatten().tolist())
        key = (tuple(ids_BT.shape), tuple(ids_BT.sum(1).tolist()), first)
        return {**call, name: memory.setdefault(key, ids_BT.clone()).clone()}

    return injection.at_arguments(subject, edit)


FAULT = Fault(name="remembers-content", inject=inject)
