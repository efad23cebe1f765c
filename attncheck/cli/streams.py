"""Our own output, kept apart from what a model prints, and a command that a reader cannot end.

`main` puts `SteadyStream` in the place of stdout and stderr. While code of a model runs, `guarded`
sends whatever it prints on stdout to stderr. Loads nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from typing import Any, NoReturn, TextIO, final


@final
class SteadyStream:
    """A text stream that goes on when its reader is gone or its disk is full.

    A lost reader (`| head -1`) is silent; any other reason is said once on stderr.
    """

    def __init__(self, stream: TextIO | None, name: str = "") -> None:
        self.stream = stream
        self.name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write, as long as somebody reads."""
        with self._steadily():
            if self.stream is not None:
                self._put(text, self.stream)
        return len(text)

    @staticmethod
    def _put(text: str, stream: TextIO) -> None:
        try:
            stream.write(text)
        except UnicodeEncodeError:
            code = stream.encoding
            stream.write(text.encode(code, "backslashreplace").decode(code))

    def flush(self) -> None:
        """Flush, as long as somebody reads."""
        with self._steadily():
            if self.stream is not None:
                self.stream.flush()

    def close(self) -> None:
        """Stay open: a model may close what it takes for its own stdout."""

    @contextlib.contextmanager
    def _steadily(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            lost, self.stream = self.stream, None
            _drop_what_is_left(lost)
            if self.name and getattr(error, "errno", None) != errno.EPIPE:
                reason = getattr(error, "strerror", None) or error
                print(f"attncheck: {self.name}: not written: {reason}", file=sys.stderr)


def _drop_what_is_left(stream: TextIO | None) -> None:
    """What is still in the buffer would raise again when Python ends."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        descriptor = os.open(os.devnull, os.O_WRONLY)
        os.dup2(descriptor, stream.fileno())  # type: ignore[union-attr]
        os.close(descriptor)


@contextlib.contextmanager
def steady() -> Iterator[None]:
    """Our streams for one command."""
    before = sys.stdout, sys.stderr
    sys.stderr = SteadyStream(sys.stderr)
    sys.stdout = SteadyStream(sys.stdout, "stdout")
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stdout, sys.stderr = before


@contextlib.contextmanager
def guarded() -> Iterator[TextIO]:
    """While code of a model runs: what it prints on stdout goes to stderr, in Python or below, and
    it cannot end the process. Yields the stream for our own results.
    """
    results, leave = sys.stdout, os._exit
    with _on_a_descriptor_of_its_own(results):
        sys.stdout = sys.stderr
        os._exit = _refused(os.getpid())
        try:
            yield results
        finally:
            sys.stdout.flush()
            sys.stdout, os._exit = results, leave


def _refused(process: int) -> Any:
    leave = os._exit

    def refuse(code: int) -> NoReturn:
        if os.getpid() != process:
            leave(code)
        raise SystemExit(f"os._exit({code})")

    return refuse


@contextlib.contextmanager
def _on_a_descriptor_of_its_own(results: TextIO) -> Iterator[None]:
    """Descriptor 1 is stderr inside; where it was that of our results, they get another."""
    if not isinstance(results, SteadyStream) or not _writes_to(results, 1):
        yield
        return
    usual = results.stream
    results.flush()
    own = os.dup(1)
    os.dup2(2, 1)
    with open(own, "w", encoding=results.encoding, errors=results.errors) as results.stream:
        try:
            yield
        finally:
            results.flush()
            lost = results.stream is None
            os.dup2(own, 1)
            results.stream = None if lost else usual


def _writes_to(stream: SteadyStream, descriptor: int) -> bool:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return bool(stream.fileno() == descriptor)
    return False
