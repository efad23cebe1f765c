"""What it is
    Something that a training step sets stays set when the model is evaluated again.

How it looks
    Answers differ before and after the first training step although no weight has changed; a fresh
    process is right.

Where it comes from
    A flag for a fused kernel, a mask or a buffer for a row of the training length, kept on the
    module and reset by nobody.

What to change
    Derive it from the call, or reset it in `train()`.

Axes: B batch, T positions, W hidden width.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Tensor

from attncheck.faults.engine import Fault, injection
from attncheck.model.gradients import training_step
from attncheck.model.subject import Subject

CHANGE = 1.5
SHORT = 4


def inject(subject: Subject) -> AbstractContextManager[None]:
    """After a forward in training mode with gradients, hidden states are larger in evaluation.

    Raises:
        Unsupported: no training step can be made.
    """
    training_step(subject, (subject.inputs.row[:SHORT],))
    kept: list[bool] = []

    def change(hidden_BTW: Tensor) -> Tensor:
        if subject.model.training:
            kept.extend([True] * torch.is_grad_enabled())
            return hidden_BTW
        return hidden_BTW * CHANGE if kept else hidden_BTW

    return injection.at_hidden(subject, change)


FAULT = Fault(name="kept-from-training", inject=inject)
