"""SIGTERM and SIGHUP end a command as Ctrl-C does: what is finished is reported. Loads nothing."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from attncheck.core.errors import Stopped

NAMES = ("SIGTERM", "SIGHUP")
_received: list[int] = []


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Raise `Stopped` in the main thread when one of the signals arrives, unless it is ignored.

    Raises:
        Stopped: a signal has arrived.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():
        here = (getattr(signal, name) for name in NAMES if hasattr(signal, name))
        numbers = [number for number in here if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, _stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _received.clear()


def _stop(number: int, _: FrameType | None) -> None:
    if not _received:  # a second signal does not disturb the last report
        _received.append(number)
        raise Stopped(number)


def stop_if_asked() -> None:
    """Raise `Stopped` again, if code of a model has swallowed it.

    Raises:
        Stopped: a signal has arrived.
    """
    if _received:
        raise Stopped(_received[0])
