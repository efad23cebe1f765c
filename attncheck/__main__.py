"""The command `attncheck`: every error becomes one line on stderr and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from attncheck.core.errors import INTERNAL, INTERRUPTED, USAGE, AttncheckError, first_line


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. ATTNCHECK_DEBUG=1 shows internal tracebacks."""
    os.environ.setdefault("TQDM_DISABLE", "1")
    from attncheck.cli.app import app

    try:
        code = app(
            args=list(sys.argv[1:] if arguments is None else arguments),
            prog_name="attncheck",
            standalone_mode=False,
        )
        return code if isinstance(code, int) else 0
    except AttncheckError as error:
        return _say(str(error), USAGE)
    except KeyboardInterrupt:
        return _say("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output has gone; a write at exit would raise again.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        return 0
    except Exception as error:
        return _unexpected(error)


def _unexpected(error: Exception) -> int:
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
    print(f"attncheck: {' '.join(message.split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
