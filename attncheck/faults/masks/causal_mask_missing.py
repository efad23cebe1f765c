"""What it is
    Queries read keys that come after them: within one forward every token sees the whole block.

How it looks
    Replacing a later token changes earlier logits. The training loss is far too low and generation
    is poor. Prefill disagrees with token-by-token decoding, which cannot see the future.

Where it comes from
    `is_causal` is not passed on when no mask is given; a decoder is built on an encoder class; the
    mask is built only when a cache is set up; one attention implementation expects the caller to
    bring the mask.

What to change
    Build the causal mask in the forward itself, in every implementation, and pass `is_causal=True`
    where the kernel gets no mask.

Axes: B batch, H query heads, T query positions, S key positions, V vocabulary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from attncheck.core.errors import CannotInject
from attncheck.faults.engine import (
    Change,
    Fault,
    Hypothesis,
    Injected,
    View,
    WrongForward,
    injection,
)
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.subject import Subject
from attncheck.numerics.divergence import beyond


def inject(subject: Subject) -> Injected:
    """Let every query read every key that any query of the block may read; padding stays hidden."""
    subject.can.decodes.require(CannotInject)
    if not subject.can.watch and subject.can.mask_4d:
        return _by_argument(subject)
    return injection.at_allowed(
        subject, lambda allowed: allowed.any(2, keepdim=True).expand(allowed.shape)
    )


@contextlib.contextmanager
def _by_argument(subject: Subject) -> Iterator[None]:
    """Pass a 4D mask that hides nothing, where attention itself cannot be changed."""
    tokens, adapter = subject.inputs.tokens, subject.forward_adapter

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        rows, new = call[adapter.ids_name].shape
        total = injection.tokens_before(subject, call) + new
        nothing_BTS = torch.zeros(
            rows, 1, new, total, dtype=subject.dtype, device=call[adapter.ids_name].device
        )
        return {**call, str(adapter.mask_name): nothing_BTS}

    healthy_BV = subject.logits(ForwardSpec(tokens))[:, 0]
    with injection.at_arguments(subject, edit):
        with torch.no_grad():
            opened_BV = subject.passes.call(tokens, use_cache=False).logits_BTV[:, 0]
        if not beyond(opened_BV, healthy_BV, subject.budget.value):
            raise CannotInject("the layers hide the future on their own, whatever the mask says")
        yield


def _hypotheses(forward: WrongForward) -> Iterator[Hypothesis]:
    if not forward.subject.can.decodes:
        return  # what reads ahead by design has no causal mask to miss
    yield Hypothesis("", Change(allowed=_whole_chunk))
    if forward.attends and not forward.spec.chunks:
        parameter = "a boolean mask is added to the scores as 0 and 1"
        yield Hypothesis(parameter, Change(added=True))


def _whole_chunk(allowed: Tensor, view: View) -> Tensor:
    return allowed.any(2, keepdim=True).expand(allowed.shape)


FAULT = Fault(name="causal-mask-missing", inject=inject, hypotheses={300: _hypotheses})
