"""What it is
    Part of the graph is cut: a projection gets no gradient, or too small a one.

How it looks
    The forward is right; a weight never moves in training, and a finite difference disagrees with
    its gradient.

Where it comes from
    `.detach()`, `.data` or `torch.no_grad()` around keys or values; a checkpointed block whose
    input needs no gradient; a cache that stores detached keys in training.

What to change
    Take the detach out of the training path; keep it in the one that only generates.
"""

from __future__ import annotations

from typing import Any

from attncheck.attention.call import AttentionCall
from attncheck.core.errors import CannotInject
from attncheck.faults.engine import Fault, Injected, injection
from attncheck.model.directional_derivatives import projections
from attncheck.model.placement import why_not_nudged
from attncheck.model.subject import Subject


def inject(subject: Subject) -> Injected:
    """Detach the keys, or the output of the first layer where the kernel is out of reach."""
    if not projections(subject.model):
        raise CannotInject(
            "no query, key or value projection was found whose gradient could be lost"
        )
    reason = why_not_nudged(subject.model)
    if reason is not None:
        raise CannotInject(f"only derivatives along projections show it, and {reason}")
    if not subject.can.kernel:
        return injection.at_hidden(subject, lambda hidden_BTW: hidden_BTW.detach())

    def handler(call: AttentionCall) -> Any:
        call.key_BGSD = call.key_BGSD.detach()
        return call.run()

    return injection.at_kernel(subject, handler)


FAULT = Fault(name="gradient-detached", inject=inject)
