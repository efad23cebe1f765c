"""How a case that the model refuses becomes a skip, and one that it breaks on a finding."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from attncheck.core.choice import LEFT_OUT, question
from attncheck.core.errors import Unsupported, first_line
from attncheck.core.measurement import Measurement, not_measured, skipped
from attncheck.model.refusal import REFUSALS, classified, of_the_model

if TYPE_CHECKING:
    from typing_extensions import TypeVarTuple, Unpack

    Args = TypeVarTuple("Args")


def attempt(
    name: str, measured: Callable[[Unpack[Args]], Measurement], *args: Unpack[Args]
) -> Measurement:
    """The case that `measured(*args)` returns; a skipped one with the reason of `Unsupported`; or a
    `BrokenCall` where the model accepted a call and broke on it. A run that does not ask for this
    case leaves it out.
    """
    try:
        with question(name) as asked:
            return measured(*args) if asked else skipped(name, LEFT_OUT)
    except Unsupported as reason:
        return not_measured(name, reason)
    except REFUSALS as error:
        if not of_the_model(error):
            raise
        return not_measured(name, classified(error, f"the call raises {first_line(error)}"))
