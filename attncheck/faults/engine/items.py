"""How faults of pictures and sounds are injected: in the arguments that pass them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from attncheck.core.errors import CannotInject
from attncheck.faults.engine import injection
from attncheck.faults.engine.fault import Injected
from attncheck.model.media import Medium
from attncheck.model.subject import Subject

Change = Callable[[Tensor, dict[str, Any]], Tensor]
"""The main tensor of the items, changed; it is shown all arguments of the call."""


def medium_of(subject: Subject) -> Medium:
    """The first kind of item that the model takes.

    Raises:
        CannotInject: it takes none.
    """
    found = next((medium for medium in subject.media if medium.matters), None)
    if found is None:
        raise CannotInject("the model takes no picture and no sound")
    return found


def at_items(subject: Subject, change: Change) -> Injected:
    """Change the main tensor of the items in every call that has any.

    Raises:
        CannotInject: the model takes none.
    """
    name = medium_of(subject).require().main

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        value = call.get(name)
        return {**call, name: change(value, call)} if isinstance(value, Tensor) else call

    return injection.at_arguments(subject, edit)
