"""What the C library does with freed memory, while attncheck owns the process. Loads nothing."""

from __future__ import annotations

import contextlib
import ctypes
import sys

M_MMAP_THRESHOLD = -3
LARGE = 2 << 20


def return_freed_memory() -> None:
    """Have the memory of large tensors go back to the system as soon as they are freed.

    glibc raises its threshold to 32 MiB when one large block is freed (mallopt(3)); from then on logits that were forgotten
    stay in its pools, as much again as those that are kept. Setting the threshold stops that.
    """
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE)
