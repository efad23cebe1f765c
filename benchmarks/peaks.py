"""The peak memory of this process from a moment on: of the accelerator where the model is on one,
else resident memory.
"""

from __future__ import annotations

import ctypes
import gc
import threading
from contextlib import suppress
from pathlib import Path
from typing import Protocol, final

import psutil

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")
RESET_PEAK = "5"
SAMPLED_EVERY = 0.002


class Meter(Protocol):
    """Measures the peak since it was restarted, in bytes."""

    def restart(self) -> None:
        """Forget the peak so far."""

    def peak(self) -> int:
        """The most since the restart."""


@final
class Kernel:
    """The kernel's own high-water mark, put back to what is in use now."""

    def restart(self) -> None:
        CLEAR.write_text(RESET_PEAK, encoding="ascii")

    def peak(self) -> int:
        fields = dict(
            line.split(":", 1)
            for line in STATUS.read_text(encoding="utf-8").splitlines()
            if ":" in line
        )
        return int(fields["VmHWM"].split()[0]) << 10


@final
class Sampling:
    """Resident memory read again and again by a thread, where the kernel keeps no mark that can be
    put back.
    """

    def __init__(self) -> None:
        self.most = 0
        self.process = psutil.Process()
        threading.Thread(target=self._watch, daemon=True).start()

    def restart(self) -> None:
        self.most = self.process.memory_info().rss

    def peak(self) -> int:
        return max(self.most, self.process.memory_info().rss)

    def _watch(self) -> None:
        pause = threading.Event()
        while not pause.wait(SAMPLED_EVERY):
            self.most = max(self.most, self.process.memory_info().rss)


@final
class Accelerator:
    """What torch allocated on the GPU."""

    def restart(self) -> None:
        import torch

        torch.cuda.reset_peak_memory_stats()

    def peak(self) -> int:
        import torch

        return int(torch.cuda.max_memory_allocated())


def meter(device: str) -> Meter:
    """The meter for a model on this kind of device, restarted."""
    settled()
    found: Meter = Accelerator() if device == "cuda" else Kernel()
    try:
        found.restart()
    except OSError:
        found = Sampling()
        found.restart()
    return found


def settled() -> None:
    """Free what loading left behind, so that it neither hides nor inflates the next peak."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
