"""What it is
    `attention_mask` is accepted and thrown away.

How it looks
    Padding, packing and custom masks change nothing; batches of unequal length are wrong.

Where it comes from
    An implementation that supports only `is_causal`; a wrapper that forgets to pass the mask on.

What to change
    Pass the mask down to the kernel, or refuse it loudly.
"""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.core.errors import CannotInject
from attncheck.faults.engine import (
    Change,
    Fault,
    Hypothesis,
    Injected,
    WrongForward,
    injection,
    masks,
)
from attncheck.model.forward_spec import all_ones
from attncheck.model.subject import Subject


def inject(subject: Subject) -> Injected:
    """Drop `attention_mask` from every call."""
    if subject.forward_adapter.mask_name is None:
        raise CannotInject("the model has no `attention_mask` to ignore")
    return injection.without_argument(subject, subject.forward_adapter.mask_name)


def _hypotheses(forward: WrongForward) -> Iterator[Hypothesis]:
    if forward.attends and forward.spec.mask is not None:
        yield Hypothesis(
            change=lambda spec: Change(allowed=masks.without_mask, mask_2d=all_ones(spec.tokens)),
            holds=masks.masks_ignored,
        )


FAULT = Fault(
    name="attention-mask-ignored",
    inject=inject,
    hypotheses={360: _hypotheses},
    looks_like=("padding-visible",),
)
