"""The command `attncheck`: every error becomes one line on stderr and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from attncheck.cli.stopping import stoppable
from attncheck.cli.streams import steady
from attncheck.core.errors import (
    INTERNAL,
    INTERRUPTED,
    USAGE,
    AttncheckError,
    ForeignExit,
    first_line,
    stop_code,
)
from attncheck.core.visible import one_line


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. ATTNCHECK_DEBUG=1 shows internal tracebacks."""
    os.environ.setdefault("TQDM_DISABLE", "1")
    with steady(), stoppable():
        return _command(list(sys.argv[1:] if arguments is None else arguments))


def _command(arguments: list[str]) -> int:
    from attncheck.cli.app import app

    try:
        code = app(args=arguments or ["--help"], prog_name="attncheck", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except AttncheckError as error:
        return _say(str(error), USAGE)
    except KeyboardInterrupt as stop:
        return _say("interrupted", stop_code(stop))
    except ForeignExit as error:
        return _say(f"code of the model raised {first_line(error)}", INTERNAL)
    except BaseException as error:
        return _unexpected(error)


def _unexpected(error: BaseException) -> int:
    if type(error).__name__ == "Abort":
        return _say("interrupted", INTERRUPTED)
    # Click's usage errors, which typer raises from a copy of its own in newer releases.
    message = getattr(error, "format_message", None)
    if message is not None:
        return _say(str(message()), int(getattr(error, "exit_code", USAGE)))
    if os.environ.get("ATTNCHECK_DEBUG"):
        raise error
    return _say(
        f"internal error: {first_line(error)} (set ATTNCHECK_DEBUG=1 for the traceback)", INTERNAL
    )


def _say(message: str, code: int) -> int:
    print(f"attncheck: {one_line(message)}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
