"""How a case that the model refuses becomes a skip, and one that it breaks on a finding; and how
only some cases of a probe are asked again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING

from attncheck.core.choice import LEFT_OUT, question
from attncheck.core.errors import Unsupported, first_line
from attncheck.core.measurement import Measurement, not_measured, skipped
from attncheck.model.refusal import REFUSALS, classified, of_the_model

if TYPE_CHECKING:
    from typing_extensions import TypeVarTuple, Unpack

    Args = TypeVarTuple("Args")


_detecting: ContextVar[bool] = ContextVar("detecting", default=False)
_asked: ContextVar[Collection[str] | None] = ContextVar("asked", default=None)


@contextlib.contextmanager
def asking(names: Collection[str] | None) -> Iterator[None]:
    """While active, `attempt` measures the cases of these names only; None is every case."""
    token = _asked.set(names)
    try:
        yield
    finally:
        _asked.reset(token)


def asked(concerns: Callable[[str], bool]) -> bool:
    """Whether a case is asked whose name `concerns` takes for its own."""
    names = _asked.get()
    return names is None or any(map(concerns, names))


@contextlib.contextmanager
def detecting() -> Iterator[None]:
    """While active, a probe need only notice a fault, and may leave out what would name it."""
    token = _detecting.set(True)
    try:
        yield
    finally:
        _detecting.reset(token)


def unnamed() -> bool:
    """Whether nobody reads what a broken case is named."""
    return _detecting.get()


def attempt(
    name: str, measured: Callable[[Unpack[Args]], Measurement], *args: Unpack[Args]
) -> Measurement:
    """The case that `measured(*args)` returns; a skipped one with the reason of `Unsupported`; or a
    `BrokenCall` where the model accepted a call and broke on it. A case that is not asked, now or
    in this run, is left out.
    """
    if not asked(name.__eq__):
        return skipped(name, LEFT_OUT)
    try:
        with question(name) as wanted:
            return measured(*args) if wanted else skipped(name, LEFT_OUT)
    except Unsupported as reason:
        return not_measured(name, reason)
    except REFUSALS as error:
        if not of_the_model(error):
            raise
        return not_measured(name, classified(error, f"the call raises {first_line(error)}"))
