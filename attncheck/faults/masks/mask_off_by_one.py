"""What it is
    The diagonal of the causal mask is shifted: each query reads one key too many, the one after its
    own.

How it looks
    Only the next token changes the present logits. The loss collapses in training because the label
    is visible.

Where it comes from
    `tril(diagonal=1)` or `triu(diagonal=2)`; `<=` instead of `<` on positions that already count
    from one.

What to change
    Allow key j for query i exactly when j <= i: `tril(diagonal=0)`, counted from the end of the
    cache.

Axes: B batch, H query heads, T query positions, S key positions, W hidden width.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attncheck.core.errors import CannotInject
from attncheck.faults.engine import (
    Allowed,
    Change,
    Fault,
    Hypothesis,
    Injected,
    View,
    WrongForward,
    injection,
)
from attncheck.model.subject import Subject

SHARE = 0.1


def inject(subject: Subject) -> Injected:
    """Let every query read what the next query reads as well; the last one stays as it is.

    Where the keys are out of reach, each position of an attention module gets a share of the next.
    """
    if not subject.can.watch:
        subject.can.decodes.require(CannotInject)
        return injection.at_attention_inputs(subject, _next_beside)
    return injection.at_allowed(
        subject, lambda allowed: allowed | torch.cat([allowed[:, :, 1:], allowed[:, :, -1:]], 2)
    )


def _next_beside(hidden_BTW: Tensor) -> Tensor:
    return hidden_BTW + SHARE * torch.cat([hidden_BTW[:, 1:], hidden_BTW[:, -1:]], 1)


def _hypotheses(forward: WrongForward) -> Iterator[Hypothesis]:
    for step in (1, -1, 2):
        yield Hypothesis("" if step == 1 else f"by {step:+d}", Change(allowed=_shifted(step)))


def _shifted(step: int) -> Allowed:
    def shifted(allowed: Tensor, view: View) -> Tensor:
        diagonal = allowed.shape[-1] - allowed.shape[-2]
        reached = torch.ones_like(allowed).tril(diagonal + step)
        if step < 0:
            return allowed & reached
        later = reached & ~torch.ones_like(allowed).tril(diagonal)
        # Padding stays hidden: only keys that some query of the chunk reads can become visible.
        return allowed | (later & allowed.any(2, keepdim=True))

    return shifted


FAULT = Fault(name="mask-off-by-one", inject=inject, hypotheses={310: _hypotheses})
