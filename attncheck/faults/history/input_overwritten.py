"""What it is
    A forward writes into a tensor of its caller.

How it looks
    The first call is right; a second one with the same tensor is wrong, as is everything else that
    the caller does with it.

Where it comes from
    In-place operators on an argument: `inputs_embeds *= scale`, a mask that is filled with the
    smallest number.

What to change
    Write the result into a new tensor.

Axes: B batch, T positions, W hidden width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attncheck.core.errors import CannotInject, Unsupported, first_line
from attncheck.faults.engine import Fault, Injected, injection
from attncheck.model.embeddings import token_table
from attncheck.model.refusal import REFUSALS
from attncheck.model.signature import takes_argument
from attncheck.model.subject import Subject

EMBEDDINGS = "inputs_embeds"
CHANGE = 1.5


def inject(subject: Subject) -> Injected:
    """Scale the embeddings of the caller in place; this forward still gets the right ones.

    Raises:
        CannotInject: the model takes no embeddings for its decoder, or cannot do without ids.
    """
    if subject.forward_adapter.fixed or not takes_argument(subject.model, EMBEDDINGS):
        raise CannotInject(f"forward takes no `{EMBEDDINGS}` for its decoder")
    _call_with_embeddings(subject)

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        embeddings_BTW = call.get(EMBEDDINGS)
        if not isinstance(embeddings_BTW, Tensor) or embeddings_BTW.requires_grad:
            return call
        right_BTW = embeddings_BTW.clone()
        embeddings_BTW.mul_(CHANGE)
        return {**call, EMBEDDINGS: right_BTW}

    return injection.at_arguments(subject, edit)


def _call_with_embeddings(subject: Subject) -> None:
    """One forward over embeddings in place of ids.

    Raises:
        CannotInject: the model needs the ids as well.
    """
    tokens, ids_name = subject.inputs.tokens, subject.forward_adapter.ids_name
    try:
        with torch.no_grad(), subject.numerics():
            embeddings_BTW = token_table(subject.model)(subject.passes.ids(tokens)).clone()
            extra = {ids_name: None, EMBEDDINGS: embeddings_BTW}
            subject.passes.call(tokens, use_cache=False, extra=extra)
    except (Unsupported, *REFUSALS) as reason:
        raise CannotInject(f"`{EMBEDDINGS}` alone: {first_line(reason)}") from reason


FAULT = Fault(name="input-overwritten", inject=inject)
