"""Several processes that run one sharded model: they take every step together, and where one cannot, all end.

Each process runs the same probes on its part of the model. Before every forward they tell each other what they are about to
do; what they measure is exchanged and the worst of it counts on all, so that no process takes a turn alone. A process that
raises where another still waits for it ends the run with one message instead of a hang. Without `join` nothing here does
anything.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import sys
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous

from attncheck.errors import UsageError, first_line

T = TypeVar("T")
TIMEOUT = 1800.0
GRACE = 15.0
"""Seconds that a process may stay inside what another one has left by raising."""
POLL = 0.5
INTERNAL = 3
HINT = "start it with: torchrun --nproc-per-node {size} -m attncheck …"


@final
@dataclass
class Ranks:
    """This process among the others."""

    rank: int
    size: int
    store: Any
    group: Any
    step: int = 0
    since: float | None = None
    what: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def exchange(self, kind: str, value: T) -> list[T]:
        """What every process has to say at this step, by rank; all must be at the same one."""
        self._same_step(kind, 0)
        found: list[Any] = [None] * self.size
        self._together(lambda: dist.all_gather_object(found, value, group=self.group))
        return found

    def enter(self, what: str, check: int) -> None:
        """Begin a forward, if all begin the same one."""
        self._same_step(what, check)
        with self.lock:
            self.since, self.what = time.monotonic(), what

    def leave(self, error: BaseException | None) -> None:
        """End a forward; where it raised, the others learn it."""
        with self.lock:
            self.since = None
        if error is not None:
            self.store.set(f"attncheck/raised/{self.step}", f"rank {self.rank} raised {first_line(error)}")

    def _same_step(self, kind: str, check: int) -> None:
        self.step += 1
        mine = torch.tensor([self.step, zlib.crc32(kind.encode()), check])
        seen = [torch.zeros_like(mine) for _ in range(self.size)]
        self._together(lambda: dist.all_gather(seen, mine, group=self.group))
        apart = [rank for rank, each in enumerate(seen) if not torch.equal(each, seen[0])]
        if apart:
            said = self._raised(self.step - 1) or f"rank {apart[0]} does something else than rank 0"
            self.end(f"the processes are out of step before {kind}: {said}")

    def _raised(self, step: int) -> str:
        """What a process raised in a step, or nothing."""
        with contextlib.suppress(RuntimeError):
            if self.store.check([f"attncheck/raised/{step}"]):
                said: str = self.store.get(f"attncheck/raised/{step}").decode()
                return said
        return ""

    def _together(self, call: Any) -> None:
        try:
            call()
        except RuntimeError as error:
            self.end(f"a process does not answer the others: {first_line(error)}")

    def end(self, message: str) -> NoReturn:
        """End this process, and with it the run; only the first that does says why."""
        with contextlib.suppress(RuntimeError):
            if self.store.add("attncheck/said", 1) == 1:
                print(f"attncheck: {message}", file=sys.__stderr__, flush=True)
        os._exit(INTERNAL)

    def watch(self) -> None:
        """End the run when this process waits inside a forward that another one has left by raising."""
        while True:
            time.sleep(POLL)
            with self.lock:
                step, since, what = self.step, self.since, self.what
            if since is not None and time.monotonic() - since > GRACE:
                said = self._raised(step)
                if said:
                    self.end(f"{said} in {what}, where rank {self.rank} waits for it")


_here: list[Ranks] = []


def join(size: int) -> None:
    """Become one of `size` processes, once.

    Raises:
        UsageError: the process was not started as one of that many.
    """
    if _here:
        return
    if int(os.environ.get("WORLD_SIZE", "1")) != size:
        raise UsageError(f"tp={size} needs {size} processes: {HINT.format(size=size)}")
    limit = datetime.timedelta(seconds=TIMEOUT)
    store, rank, _ = next(rendezvous("env://"))
    device = torch.accelerator.current_accelerator() if hasattr(torch, "accelerator") else None
    if device is not None:
        torch.accelerator.set_device_index(int(os.environ.get("LOCAL_RANK", "0")))
    backend = "nccl" if device is not None and device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
    group = dist.new_group(backend="gloo", timeout=limit)
    _here.append(Ranks(rank=rank, size=size, store=store, group=group))
    threading.Thread(target=_here[0].watch, daemon=True).start()


def part() -> None:
    """Wait for the others and be a process of one's own again."""
    if _here:
        _here[0].exchange("the end", None)
        _here.clear()
        dist.destroy_process_group()


def gathered(kind: str, value: T) -> Sequence[T]:
    """A value of every process, by rank; alone, just this one's."""
    return _here[0].exchange(kind, value) if _here else (value,)


def agreed(kind: str, value: T) -> T:
    """What rank 0 decides: for anything that depends on the clock, on free memory or on one process's part of the model."""
    return gathered(kind, value)[0]


@contextlib.contextmanager
def inside(what: str) -> Iterator[None]:
    """Something that all begin together, such as loading, and that must not leave one of them waiting."""
    if not _here:
        yield
        return
    _here[0].enter(what, 0)
    try:
        yield
    except BaseException as error:
        _here[0].leave(error)
        raise
    _here[0].leave(None)


def keep_in_step(model: nn.Module) -> None:
    """Have every forward of a model begin at the same time, with the same tokens, in all processes."""
    if not _here:
        return
    model.register_forward_pre_hook(_before, with_kwargs=True)
    model.register_forward_hook(_after, always_call=True)


def _before(module: nn.Module, args: Any, named: Any) -> None:
    given = [value for value in (*args, *named.values()) if isinstance(value, Tensor) and not value.is_floating_point()]
    check = sum(int(value.sum()) + 1009 * value.numel() for value in given)
    if _here:
        _here[0].enter("a forward", check)


def _after(module: nn.Module, args: Any, output: Any) -> None:
    if _here:
        _here[0].leave(sys.exc_info()[1])
