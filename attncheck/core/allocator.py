"""What the C library does with freed memory: given back when asked, at once where attncheck owns
the process. Loads nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable, Iterator

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
TOP = 2 << 20
"""Bytes that stay at the end of the heap, for the next forward to use: its activations are freed
one after the other.
"""
LOGITS = 1 << 20
"""Bytes from which on memory is mapped: logits are, activations of a small model are not, since
mapping takes time.
"""


def keep_threshold() -> None:
    """Have the memory of logits go back to the system as soon as they are freed.

    glibc raises its threshold up to 32 MiB when large blocks are freed (mallopt(3)); from then on
    logits that were forgotten stay in its pools, as much again as those that are kept. Setting the
    threshold stops that.
    """
    _glibc(lambda library: library.mallopt(M_MMAP_THRESHOLD, LOGITS))
    _glibc(lambda library: library.mallopt(M_TRIM_THRESHOLD, TOP))


@contextlib.contextmanager
def returning_memory() -> Iterator[None]:
    """Give back what was freed, before and afterwards: for work that keeps many activations, such
    as a gradient.
    """
    return_freed_memory()
    try:
        yield
    finally:
        return_freed_memory()


def return_freed_memory() -> None:
    """Give back what small tensors left behind, such as the activations of a gradient."""
    _glibc(lambda library: library.malloc_trim(0))


def _glibc(ask: Callable[[ctypes.CDLL], object]) -> None:
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):  # another C library
            ask(ctypes.CDLL(None))
