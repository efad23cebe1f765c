"""SIGTERM and SIGHUP end a command as Ctrl-C does: what is finished is reported. Loads nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import final

from attncheck.core.errors import END_PROCESS, Stopped

NAMES = ("SIGTERM", "SIGHUP")
ENDS = (1, 2, 15)
"""The numbers of SIGHUP, SIGINT and SIGTERM."""
PATIENCE = 20.0
GAP = 3.0
"""Seconds between two alarms of a time limit that nobody has answered, and more."""
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


@contextlib.contextmanager
def last_resort(leave: Callable[[int], int], patience: float = PATIENCE) -> Iterator[None]:
    """For code below Python that no signal reaches, such as a lock that is never released.

    Where the main thread has not answered a signal after `patience` seconds, `leave` is called with
    its number in another thread, and the process ends with the exit code that it returns.
    """
    if threading.current_thread() is not threading.main_thread() or os.name != "posix":
        yield
        return
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    before = signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
    answered = threading.Event()
    watch = _Watch(reads, answered, leave, patience)
    watch.start()
    try:
        yield
    finally:
        answered.set()
        signal.set_wakeup_fd(before)
        os.close(writes)
        watch.join()
        os.close(reads)


@final
class _Watch(threading.Thread):
    """Reads the numbers of signals, which arrive even where Python's own handlers do not run."""

    def __init__(
        self,
        reads: int,
        answered: threading.Event,
        leave: Callable[[int], int],
        patience: float,
    ) -> None:
        super().__init__(daemon=True)
        self.reads, self.answered, self.leave, self.patience = reads, answered, leave, patience
        self.exit = END_PROCESS
        self.first = self.last = 0.0

    def run(self) -> None:
        """Wait for signals until the other end is closed."""
        while data := os.read(self.reads, 1):
            number, now = data[0], time.monotonic()
            if number == signal.SIGALRM:  # again and again, as long as nobody answers
                self.first = self.first if now - self.last < GAP else now
                self.last = now
                ignored = now - self.first > self.patience
            else:
                ignored = number in ENDS and not self.answered.wait(self.patience)
            if ignored:
                self._end(number)

    def _end(self, number: int) -> None:
        code = 128 + number
        try:
            code = self.leave(number)
        finally:
            self.exit(code)


def stop_if_asked() -> None:
    """Raise `Stopped` again, if code of a model has swallowed it.

    Raises:
        Stopped: a signal has arrived.
    """
    if _received:
        raise Stopped(_received[0])
