"""Parts of hypotheses about which keys each query may read.

Axes: B batch, T query positions of one chunk, S key positions up to its end.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from attncheck.core.errors import Unsupported
from attncheck.faults.engine.expected import View, expected_keys
from attncheck.faults.engine.trusted import Trusted
from attncheck.model.forward_spec import ForwardSpec, Mask2D, Mask4D, blocks
from attncheck.numerics.divergence import beyond


def without_mask(allowed: Tensor, view: View) -> Tensor:
    """The keys that are readable without any mask argument: padding and all documents."""
    return _expected(view, replace(view.spec, mask=None, use_cache=True), allowed)


def without_documents(allowed: Tensor, view: View) -> Tensor:
    """The keys that are readable when documents may read each other; padding stays hidden."""
    mask = None if isinstance(view.spec.mask, Mask4D) else view.spec.mask
    return _expected(view, replace(view.spec, mask=mask, use_cache=True), allowed)


def _expected(view: View, spec: ForwardSpec, like: Tensor) -> Tensor:
    return expected_keys(spec, view.span, like.device)[:, :, view.start : view.stop, : view.stop]


def masks_ignored(trusted: Trusted) -> bool:
    """Whether no form of `attention_mask` that this model takes, 2D or 4D, changes its logits."""
    subject, half = trusted.subject, trusted.subject.inputs.length // 2
    tokens, rest = subject.inputs.tokens, subject.inputs.length - half
    plain_BTV = subject.logits(ForwardSpec(tokens))[:, half:]
    for mask in (Mask2D(((0,) * half + (1,) * rest,)), blocks((half, rest))):
        try:
            masked_BTV = subject.logits(ForwardSpec(tokens, mask=mask))[:, half:]
        except (Unsupported, TypeError, ValueError, RuntimeError):
            continue
        if beyond(masked_BTV, plain_BTV, subject.budget.value):
            return False
    return True
