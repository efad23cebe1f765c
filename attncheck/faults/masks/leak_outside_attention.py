"""What it is
    Something other than attention reads later tokens: a normalisation over the time axis, a
    convolution without left padding, a router that chooses over the whole sequence.

How it looks
    Later tokens change earlier logits although every attention mask is right; the location names a
    module that is not attention.

Where it comes from
    Batch or sequence statistics in a norm; `padding='same'` in a convolution; expert-choice
    routing; a shift in the wrong direction.

What to change
    Make the module that the location names causal: pad convolutions on the left only, normalise
    over the width only, route each token by itself.

Axes: B batch, T positions, W hidden width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attncheck.faults.engine import Fault, Injected, injection
from attncheck.model.subject import Subject

SHARE = 0.1


def inject(subject: Subject) -> Injected:
    """Add a share of the next token's hidden state to each hidden state."""

    def change(hidden_BTW: Tensor) -> Tensor:
        return hidden_BTW + SHARE * torch.cat([hidden_BTW[:, 1:], hidden_BTW[:, -1:]], 1)

    return injection.at_hidden(subject, change)


FAULT = Fault(name="leak-outside-attention", inject=inject)
