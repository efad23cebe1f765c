"""The gradient under gradient checkpointing, against the one without.

Axes: B batch, T positions, W hidden width.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from attncheck.probing import (
    CallFailed,
    Cause,
    Measurement,
    Subject,
    Unsupported,
    compare_gradients,
    input_gradient,
    loop_gradient,
    training,
)

ALWAYS = "use_reentrant=True"
"""What torch says of reentrant checkpoints whose gradient is asked for without `backward()`."""
USUAL, LOOP = "gradient checkpointing", "a training loop, reentrant checkpoints"


def checkpointed(subject: Subject) -> Measurement:
    """Checkpoints that compute again under their own context, without a cache."""
    with training(subject, checkpointing=False):
        plain_BTW, again_BTW = input_gradient(subject), input_gradient(subject)
    if not torch.equal(plain_BTW, again_BTW):
        raise Unsupported("training mode draws at random even with dropout at zero")
    with training(subject, checkpointing=True):
        try:
            saved_BTW = input_gradient(subject)
        except CallFailed as failure:
            if ALWAYS not in str(failure):
                raise
            raise Unsupported(f"its checkpoints are reentrant in any case: see {LOOP}") from failure
    return compare_gradients(subject, USUAL, saved_BTW, plain_BTW)


def reentrant(subject: Subject) -> Measurement:
    """Reentrant checkpoints, the cache left to the model, and `backward()`."""
    gradients = []
    for checkpointing in (False, True):
        with training(subject, checkpointing=checkpointing, reentrant=True):
            gradients.append(loop_gradient(subject))
    plain_BTW, saved_BTW = gradients
    case = compare_gradients(subject, LOOP, saved_BTW, plain_BTW)
    return replace(case, cause=Cause("recomputed-on-cache")) if case.beyond else case
