"""Commands in several processes of torchrun: rank 0 prints and writes, the others only compute."""

from __future__ import annotations

import os
import sys

from attncheck.core.errors import STOPPED, UsageError


def is_first() -> bool:
    """Whether this process prints and writes."""
    return os.environ.get("RANK", "0") == "0"


def tp_size(sharded: bool) -> int | None:
    """The number of processes that share each model with `--tp`, else None.

    Raises:
        UsageError: this is a single process.
    """
    if not sharded:
        return None
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size < 2:
        raise UsageError(
            "--tp needs processes to share the model: "
            "torchrun --nproc-per-node 2 -m attncheck run TARGET --tp"
        )
    hush()
    return size


def hush() -> None:
    """Silence every process but the first."""
    if not is_first():
        # Stays open until the process ends.
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def ended(code: int) -> int:
    """The exit code of this process, once all have got here: 0 in all but the first."""
    from attncheck.distributed import ranks

    if code in STOPPED:
        ranks.stopped()
    else:
        ranks.part()
    return code if is_first() else 0
