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

from torch import Tensor, nn

from attncheck.attention.call import AttentionCall
from attncheck.attention.layers import key_value_projections
from attncheck.core.errors import CannotInject
from attncheck.faults.engine import Fault, Injected, injection
from attncheck.model.directional_derivatives import projections
from attncheck.model.placement import why_not_nudged
from attncheck.model.subject import Subject
from attncheck.numerics.hooks import hooked


def inject(subject: Subject) -> Injected:
    """Detach the keys: what the kernel gets, or what projections return where it is out of
    reach.
    """
    if not projections(subject.model):
        raise CannotInject(
            "no query, key or value projection was found whose gradient could be lost"
        )
    reason = why_not_nudged(subject.model)
    if reason is not None:
        raise CannotInject(f"only derivatives along projections show it, and {reason}")
    outputs = key_value_projections(subject.model)
    if outputs and not subject.can.kernel:
        return hooked(each.register_forward_hook(_detached) for each in outputs)

    def handler(call: AttentionCall) -> Any:
        call.key_BGSD = call.key_BGSD.detach()
        return call.run()

    return injection.at_kernel(subject, handler)


def _detached(module: nn.Module, args: Any, output: Any) -> Any:
    return output.detach() if isinstance(output, Tensor) else output


FAULT = Fault(name="gradient-detached", inject=inject)
