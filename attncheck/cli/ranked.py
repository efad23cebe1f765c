"""Commands in several processes started by torchrun: the first one speaks and writes, the others
only compute.
"""

from __future__ import annotations

import os
import sys

from attncheck.core.errors import UsageError

INTERRUPTED = 130


def is_first() -> bool:
    """Whether this process is the one that speaks."""
    return os.environ.get("RANK", "0") == "0"


def tp_size(spec: bool) -> int | None:
    """How many processes share each model, where `--tp` asks for it.

    Raises:
        UsageError: this is one process alone.
    """
    if not spec:
        return None
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size < 2:
        raise UsageError(
            "--tp needs processes to share the model: torchrun --nproc-per-node 2 -m attncheck run TARGET --tp"
        )
    hush()
    return size


def hush() -> None:
    """Only the first process is heard."""
    if not is_first():
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - open as long as the process lives


def ended(code: int) -> int:
    """The exit code of this process, once all have come this far: that of the run in the first, 0
    in the others.
    """
    from attncheck.distributed import ranks

    if code != INTERRUPTED:
        ranks.part()
    return code if is_first() else 0
