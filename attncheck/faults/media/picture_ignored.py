"""What it is
    A picture, or a sound, is taken and not looked at.

How it looks
    Another picture gives the same answer; the text is fluent and describes nothing that is there.

Where it comes from
    Features that are computed and never put in the place of their placeholders; a projection that
    returns a constant; features of the first picture that are kept for all later ones.

What to change
    Put the features of each picture in the place of its own placeholders, in every call that has
    one.
"""

from __future__ import annotations

import torch

from attncheck.faults.engine import Fault, Injected, items
from attncheck.model.subject import Subject

GREY = 0.5


def inject(subject: Subject) -> Injected:
    """Show the same grey picture in place of each; places without one stay empty."""
    return items.at_items(
        subject, lambda value, call: torch.where(value == 0, value, torch.full_like(value, GREY))
    )


FAULT = Fault(name="picture-ignored", inject=inject)
