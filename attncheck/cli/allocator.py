"""What the C library does with freed memory, while attncheck owns the process. Loads nothing."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable

M_MMAP_THRESHOLD = -3
LARGE = 128 << 10
"""glibc's own threshold at the start of a process."""


def keep_threshold() -> None:
    """Have the memory of large tensors go back to the system as soon as they are freed.

    glibc raises its threshold up to 32 MiB when large blocks are freed (mallopt(3)); from then on logits that were forgotten
    stay in its pools, as much again as those that are kept. Setting the threshold stops that.
    """
    _glibc(lambda library: library.mallopt(M_MMAP_THRESHOLD, LARGE))


def return_freed_memory() -> None:
    """Give back what small tensors left behind, such as the activations of a gradient."""
    _glibc(lambda library: library.malloc_trim(0))


def _glibc(ask: Callable[[ctypes.CDLL], object]) -> None:
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):  # another C library
            ask(ctypes.CDLL(None))
