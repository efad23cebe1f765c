"""The errors that attncheck raises. Standard library only.

Every message is one line: what, where, what was expected, the nearest valid name.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Iterator

from attncheck.core.visible import shortened

# Exit codes.
FAILED, USAGE, INTERNAL, NOTHING_RAN, INTERRUPTED = 1, 2, 3, 5, 130
HUNG_UP, TERMINATED = 129, 143
STOPPED = (INTERRUPTED, HUNG_UP, TERMINATED)
"""The exit codes of a run that a signal ended: 128 and the number of the signal."""
END_PROCESS = os._exit
"""What ends this process at once, kept from before code of a model can take its place."""
ENDING = (KeyboardInterrupt, GeneratorExit)
"""What ends a run from outside; everything else that a model raises is a finding about it."""
MOST = 300
"""Characters of a foreign message that are shown."""
LISTED = 24
"""Valid names that are listed where none is near."""


class AttncheckError(Exception):
    """Something the user can fix: shown as one line, exit code 2."""


class UsageError(AttncheckError):
    """A wrong option, name or combination."""


class TargetError(AttncheckError):
    """A target that cannot be found or loaded."""


class SuiteError(AttncheckError):
    """A suite file that does not say what it should."""


class ChecksFailed(AssertionError):
    """What `Report.raise_for_failures` raises: the findings that count, as tables."""


class Unsupported(Exception):
    """The model does not support a call; the reason becomes a `skip`."""


class CallFailed(Unsupported):
    """A call that the model accepted raised at `line`, or its reply has the wrong shape: a finding,
    and no reason to skip.
    """

    def __init__(self, message: str, line: str = "") -> None:
        super().__init__(f"{message}, at {line}" if line else message)


class ForeignExit(Exception):
    """Code of a model or a probe raised what is no `Exception`, such as `SystemExit`: its cause.

    It would have ended the run, with an exit code of its own.
    """


class Stopped(KeyboardInterrupt):
    """A signal asks the run to end."""

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number


class CannotInject(Unsupported):
    """This model has no place for a fault; the report states the reason with the controls."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """`did you mean ...?` for a mistyped name, or an empty string when nothing is near."""
    import difflib

    close = difflib.get_close_matches(name, list(valid), n=1, cutoff=0.5)
    return f"did you mean `{close[0]}`?" if close else ""


def unknown(kind: str, name: str, valid: Iterable[str]) -> str:
    """One line for an unknown name: the nearest valid one, or all of them."""
    names, name = sorted(valid), shortened(name)
    listed = ", ".join(f"`{each}`" for each in names[:LISTED])
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    hint = nearest(name, names) or f"expected one of {listed}{more}"
    return f"unknown {kind} `{name}`: {hint}"


@contextlib.contextmanager
def contained() -> Iterator[None]:
    """Run code that is not ours, which must not end the run.

    Raises:
        ForeignExit: it raised what is no `Exception`.
    """
    try:
        yield
    except (Exception, *ENDING):
        raise
    except BaseException as error:
        raise ForeignExit from error


def stop_code(stop: KeyboardInterrupt) -> int:
    """The exit code of a run that was stopped this way."""
    return stop.code if isinstance(stop, Stopped) else INTERRUPTED


def first_line(error: BaseException) -> str:
    """The first line of an error with its type: what fits on a terminal. Lines that follow
    a colon belong to it.
    """
    if isinstance(error, ForeignExit) and error.__cause__ is not None:
        error = error.__cause__
    kind, text = type(error).__name__, str(error)
    if isinstance(error, KeyError) and len(error.args) == 1:
        return f"{kind}: no such key: {shortened(repr(error.args[0]), MOST)}"
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    if not lines:
        return kind
    shown = lines if lines[0].endswith(":") else lines[:1]
    return f"{kind}: {shortened(' '.join(shown), MOST)}"
