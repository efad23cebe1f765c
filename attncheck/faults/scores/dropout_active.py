"""What it is
    Dropout is applied in evaluation mode.

How it looks
    The same call twice gives different logits.

Where it comes from
    The dropout probability passed to the kernel without asking `self.training`; a module that is
    never put in eval mode.

What to change
    Pass `dropout_p=0.0` unless the module is training.
"""

from __future__ import annotations

from torch.nn.functional import dropout

from attncheck.faults.engine import Fault, Injected, injection
from attncheck.model.subject import Subject

PROBABILITY = 0.1


def inject(subject: Subject) -> Injected:
    """Drop hidden states of the first layer at random, as in training."""
    return injection.at_hidden(
        subject, lambda hidden_BTW: dropout(hidden_BTW, PROBABILITY, training=True)
    )


FAULT = Fault(name="dropout-active", inject=inject)
