"""The logits of forwards that ran, within a byte limit; what does not fit lies in a file.

A vocabulary of 49,152 makes the logits of 24 tokens a hundred times as large as everything else
that is kept of a forward, and reading them back takes a fiftieth of the time of that forward.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import BufferedRandom
from operator import attrgetter
from typing import Any, final

import torch
from torch import Tensor

from attncheck.model.injection import Faults

ON_DISK = 512 << 20
"""Bytes of the file at most."""
SHARE_OF_DISK = 0.25
NBYTES = attrgetter("nbytes")
Key = tuple[Any, ...]
"""Ends with the faults that the forward had."""


@final
@dataclass
class LogitsMemory:
    """Logits by what decides them, those used last in memory and those before in a file."""

    kept: OrderedDict[Key, Tensor] = field(default_factory=OrderedDict)
    aside: LogitsFile = field(default_factory=lambda: LogitsFile())

    def __getitem__(self, key: Key) -> Tensor:
        """logits_BTV; raises `KeyError` where they are not known."""
        if key not in self.kept:
            self.kept[key] = self.aside[key]
        self.kept.move_to_end(key)
        return self.kept[key]

    def __contains__(self, key: Key) -> bool:
        """Whether these logits are known."""
        return key in self.kept or key in self.aside.places

    def keep_within(self, limit: int, least: int = 0) -> None:
        """Put aside what was used longest ago, until no more than `limit` bytes are in memory."""
        while len(self.kept) > least and sum(map(NBYTES, self.kept.values())) > limit:
            key, logits_BTV = self.kept.popitem(last=False)
            self.aside[key] = logits_BTV

    def width(self) -> int:
        """Bytes of the logits of one token, as far as known."""
        return max((t.shape[2] * t.itemsize for t in self.kept.values()), default=0)

    def put_aside(self) -> None:
        """Leave the memory to others."""
        self.keep_within(0)

    def drop(self, gone: Callable[[Key], bool]) -> None:
        """Forget the forwards that `gone` takes."""
        for known in (self.kept, self.aside.places):
            for key in [key for key in known if gone(key)]:
                del known[key]

    def clear(self) -> list[Key]:
        """Forget every forward, and say which they were."""
        known = list({**self.kept, **self.aside.places})
        self.drop(lambda key: True)
        return known

    def forget_faults(self, faults: Faults) -> None:
        """Forget what ran with these faults."""
        self.drop(lambda key: key[-1] == faults)


@final
@dataclass(frozen=True)
class _Place:
    """Where logits lie in the file, and what they are."""

    start: int
    stop: int
    like: Tensor
    """Of the same shape, dtype and device, without memory of its own."""
    device: torch.device


@final
@dataclass
class LogitsFile:
    """Tensors in a temporary file without a name; the newest take the place of the oldest."""

    places: dict[Key, _Place] = field(default_factory=dict)
    end: int = 0
    limit: int = -1
    _file: BufferedRandom | None = None

    def __setitem__(self, key: Key, logits_BTV: Tensor) -> None:
        """Where the file cannot hold them they are forgotten."""
        if key in self.places:
            return
        with contextlib.suppress(OSError):
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="attncheck-")  # noqa: SIM115
                free = shutil.disk_usage(tempfile.gettempdir()).free
                self.limit = min(ON_DISK, int(SHARE_OF_DISK * free))
            if 0 < logits_BTV.nbytes <= self.limit:
                self._write(self._file, key, logits_BTV)

    def _write(self, file: BufferedRandom, key: Key, logits_BTV: Tensor) -> None:
        start = self.end if self.end + logits_BTV.nbytes <= self.limit else 0
        stop = start + logits_BTV.nbytes
        for other, place in list(self.places.items()):
            if place.start < stop and start < place.stop:
                del self.places[other]
        file.seek(start)
        file.write(logits_BTV.cpu().contiguous().view(torch.uint8).numpy().data)
        like = torch.empty_like(logits_BTV, device="meta")
        self.places[key], self.end = _Place(start, stop, like, logits_BTV.device), stop

    def __getitem__(self, key: Key) -> Tensor:
        place = self.places[key]
        assert self._file is not None
        found_BTV = torch.empty(place.like.shape, dtype=place.like.dtype)
        self._file.seek(place.start)
        bits = found_BTV.view(torch.uint8).numpy().data
        if self._file.readinto(bits) != place.stop - place.start:
            raise KeyError(key)
        return found_BTV.to(place.device)


def joined(parts: Iterator[Tensor], length: int) -> Tensor:
    """Logits of successive chunks in one tensor, without a second copy of them all beside it."""
    first_BTV = next(parts)
    if first_BTV.shape[1] == length:
        return first_BTV
    whole_BTV, filled = first_BTV.new_empty(first_BTV.shape[0], length, first_BTV.shape[2]), 0
    for part_BTV in itertools.chain((first_BTV,), parts):
        whole_BTV[:, filled : filled + part_BTV.shape[1]] = part_BTV
        filled += part_BTV.shape[1]
    return whole_BTV[:, :filled]
