"""What it is
    Token types that open the mask are thrown away: the patches of a picture, or a prefix, are read
    like text, backwards only.

How it looks
    Answers about pictures are worse than published; nothing raises, and text alone is right.

Where it comes from
    An argument swallowed by `**kwargs`; a kernel that takes causality from a flag and drops the
    mask; generate() without the types.

What to change
    Hand the token types on to the mask builder, in every implementation.
"""

from __future__ import annotations

from typing import Any

from attncheck.core.errors import CannotInject
from attncheck.faults.engine import Fault, Injected, injection, items
from attncheck.model.media import TOKEN_TYPES
from attncheck.model.subject import Subject


def inject(subject: Subject) -> Injected:
    """Drop the token types of every call that has a picture.

    Raises:
        CannotInject: the model takes no picture, or no token types.
    """
    medium, name = items.medium_of(subject), TOKEN_TYPES[0]
    if name not in medium.names:
        raise CannotInject(f"forward takes no `{name}`")
    main = medium.require().main

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        dropped = {name} if main in call else set[str]()
        return {key: value for key, value in call.items() if key not in dropped}

    return injection.at_arguments(subject, edit)


FAULT = Fault(name="token-types-ignored", inject=inject)
