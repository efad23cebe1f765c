"""What it is
    The attention weights are computed in half precision, where the model's own code takes its
    softmax in float32.

How it looks
    Logits differ in bfloat16 or float16 by more than reordered sums explain, and agree in float32.

Where it comes from
    A softmax without `dtype=torch.float32`; a kernel that keeps scores in the dtype of the queries.

What to change
    Take the softmax in float32 and round the weights once, when they meet the values.

Axes: B batch, H query heads, G key/value heads, T query positions, S key positions, D head width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from attncheck.attention.call import AttentionCall, weights_of
from attncheck.attention.reference import grouped
from attncheck.core.errors import CannotInject
from attncheck.faults.engine import Fault, Injected, injection
from attncheck.faults.engine.rounding import HALF_BITS, with_bits
from attncheck.model.subject import Subject
from attncheck.numerics.repairs import WideSoftmax


def inject(subject: Subject) -> Injected:
    """Round the weights of the current implementation to the bits of bfloat16."""
    subject.can.kernel.require(CannotInject)
    return injection.at_own_kernel(subject, _run_rounded)


def _run_rounded(call: AttentionCall) -> Any:
    _, *rest = call.run()
    heads, kv_heads = call.query_BHTD.shape[1], call.key_BGSD.shape[1]
    weights_BHTS = with_bits(weights_of(call), HALF_BITS)
    value_BHSD = call.value_BGSD[:, list(grouped(heads, kv_heads))]
    return ((weights_BHTS @ value_BHSD).transpose(1, 2), *rest)


@contextlib.contextmanager
def repair(subject: Subject) -> Iterator[None]:
    """A softmax in float32, whatever dtype its scores have."""
    with WideSoftmax():
        yield


FAULT = Fault(name="softmax-rounded", inject=inject, repair=repair)
