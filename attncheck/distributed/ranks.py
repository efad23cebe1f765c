"""Several processes that run one sharded model in step.

Each process runs the same probes on its part of the model. Before every forward they compare what
they are about to do; measurements are exchanged and the worst counts for all, so that the processes
never take different branches. A process that raises while another waits for it, or that is gone,
ends the run with one message instead of a hang. Without `join` every function here does nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import os
import sys
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous

from attncheck.core.errors import Unsupported, UsageError, contained, first_line
from attncheck.model.compat import CACHE_NAMES, cached_length

if TYPE_CHECKING:
    from attncheck.distributed.heartbeat import Watch

T = TypeVar("T")
# torch gives up a collective after this time: the end of a process that computes for ever.
LONGEST = datetime.timedelta(seconds=1800)
LIMIT = 120.0
VARIABLE = "ATTNCHECK_TP_TIMEOUT"
AFTER_LOSS = 30.0
BROKEN = ("connection", "closed by peer", "timed out", "reset by peer", "socket", "nccl")


@final
@dataclass
class Ranks:
    """This process among the others: what it is `doing`, and `what` step all take together."""

    rank: int
    size: int
    watch: Watch
    group: Any = None
    step: int = 0
    inside: bool = False
    doing: str = ""
    what: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def now(self) -> tuple[int, str, bool]:
        """The step, in words, and whether this process is inside it."""
        with self.lock:
            parts = [self.what] * self.inside + [self.doing]
            return self.step, ", in ".join(filter(None, parts)), self.inside

    def exchange(self, kind: str, value: T) -> list[T]:
        """The values of every process at this step, by rank; all must be at the same step."""
        self._same_step(kind, 0)
        found: list[Any] = [None] * self.size
        self._together(lambda: dist.all_gather_object(found, value, group=self.group))
        return found

    def enter(self, what: str, check: int) -> None:
        """Begin something that all begin together, such as a forward."""
        self._same_step(what, check)
        with self.lock:
            self.inside, self.what = True, what

    def leave(self, error: BaseException | None) -> None:
        """End it; if it raised, the others are told."""
        if error is not None:
            self.raised(error)
        with self.lock:
            self.inside = False

    def raised(self, error: BaseException) -> None:
        """Tell the others about an error; one of a broken connection may name who is gone."""
        if any(sign in str(error).lower() for sign in BROKEN):
            self.find_the_lost()
        self.watch.store.set(
            f"raised/{self.rank}", f"{self.step} {first_line(error)}\t{self.doing}"
        )

    def _same_step(self, kind: str, check: int) -> None:
        with self.lock:
            self.step += 1
        mine = torch.tensor([self.step, zlib.crc32(kind.encode()), check])
        seen = [torch.zeros_like(mine) for _ in range(self.size)]
        self._together(lambda: dist.all_gather(seen, mine, group=self.group))
        if any(not torch.equal(each, seen[0]) for each in seen):
            self.watch.end(f"the processes are out of step before {kind}: {self._culprit(seen)}")

    def _culprit(self, seen: list[Tensor]) -> str:
        for rank in range(self.size):
            if error := self.watch.raised(rank, self.step - 1):
                return f"rank {rank} raised {', in '.join(error)}"
        other = next(rank for rank, each in enumerate(seen) if not torch.equal(each, seen[0]))
        return f"rank {other} does something else than rank 0"

    def _together(self, call: Callable[[], Any]) -> None:
        try:
            call()
        except RuntimeError as error:
            self.find_the_lost()
            self.watch.end(f"a process does not answer the others: {first_line(error)}")

    def find_the_lost(self) -> None:
        """The watch ends the run if a process is gone; this returns if all are there."""
        self.watch.lost.set()
        self.watch.named.wait(AFTER_LOSS)
        self.watch.named.clear()


_here: list[Ranks] = []


def join(size: int) -> None:
    """Become one of `size` processes, once.

    Raises:
        UsageError: another number of processes was started, or the limit is no number.
    """
    if _here:
        return
    if int(os.environ.get("WORLD_SIZE", "1")) != size:
        command = f"torchrun --nproc-per-node {size} -m attncheck …"
        raise UsageError(f"tp={size} needs {size} processes: start it with: {command}")
    limit = _limit()
    store, rank, _ = next(rendezvous("env://"))
    me = Ranks(rank=rank, size=size, watch=_watch(rank, size, limit))
    me.watch.now = me.now
    me.watch.start()
    _here.append(me)
    device = torch.accelerator.current_accelerator() if hasattr(torch, "accelerator") else None
    if device is not None:
        torch.accelerator.set_device_index(int(os.environ.get("LOCAL_RANK", "0")))
    backend = "nccl" if device is not None and device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=LONGEST)
    me.group = dist.new_group(backend="gloo", timeout=LONGEST)
    atexit.register(_left_early)


def _limit() -> float:
    """Seconds that a process may neither wait nor make progress."""
    given = os.environ.get(VARIABLE, str(LIMIT))
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise UsageError(f"{VARIABLE}={given}: expected a number of seconds above 0")
    return seconds


def _watch(rank: int, size: int, limit: float) -> Watch:
    # A connection of its own, so that the watch never waits behind the main thread.
    from torch._C._distributed_c10d import PrefixStore, TCPStore

    from attncheck.distributed.heartbeat import Watch  # needs POSIX, as does `torchrun --tp`

    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    patience = datetime.timedelta(seconds=AFTER_LOSS)
    connection = TCPStore(address, port, is_master=False, timeout=patience)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = PrefixStore(f"attncheck/{attempt}", connection)
    return Watch(rank=rank, size=size, store=store, limit=limit, now=lambda: (0, "", False))


def _left_early() -> None:
    # Rank 0 exits before the others, and has printed why: they print nothing more.
    from attncheck.distributed.heartbeat import REASON

    if _here and _here[0].rank == 0:
        with contextlib.suppress(RuntimeError):
            _here[0].watch.store.add(REASON, 1)


def part() -> None:
    """Wait for the others, then leave the group."""
    if _here:
        _here[0].exchange("the end", None)
        _here[0].watch.stop()
        _here.clear()
        dist.destroy_process_group()


def stopped() -> None:
    """Ask why a signal ends this process: where another one is gone, this does not return."""
    if _here:
        _here[0].find_the_lost()


def working_on(text: str) -> None:
    """Note what the run does from now on, for the message of a run that ends early."""
    if _here:
        _here[0].doing = text


def failed_alone(error: BaseException) -> None:
    """Tell the others about an error outside of a forward, which may be in one process only."""
    if _here:
        _here[0].raised(error)


def gathered(kind: str, value: T) -> Sequence[T]:
    """The values of every process, by rank; in a single process, its own value."""
    return _here[0].exchange(kind, value) if _here else (value,)


def agreed(kind: str, value: T) -> T:
    """The value of rank 0, for whatever depends on the clock, on free memory or on the part."""
    return gathered(kind, value)[0]


def by_first(kind: str, call: Callable[[], T]) -> T:
    """The result of a call that only rank 0 makes while the others wait.

    Raises:
        Unsupported: the call raised, in every process.
    """
    if not _here:
        return call()
    value, reason = None, ""
    if _here[0].rank == 0:
        hidden = list(_here)
        _here.clear()
        try:
            value = call()
        except Exception as error:
            reason = first_line(error)
        finally:
            _here.extend(hidden)
    found, why = agreed(kind, (value, reason))
    if why:
        raise Unsupported(why)
    return cast(T, found)


def first() -> bool:
    """Whether this process is the one that prints and writes."""
    return not _here or _here[0].rank == 0


@contextlib.contextmanager
def inside(what: str) -> Iterator[None]:
    """Something that all processes begin together, such as loading."""
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
    """Make every forward of a model begin together, with the same tokens, in all processes."""
    if not _here:
        return
    # Torch calls `_after` for an `Exception` only, not for a `SystemExit`.
    model.forward = contained()(model.forward)
    model.register_forward_pre_hook(_before, with_kwargs=True)
    model.register_forward_hook(_after, always_call=True)


def _before(module: nn.Module, args: Any, named: Any) -> None:
    given = [
        value
        for value in (*args, *named.values())
        if isinstance(value, Tensor) and not value.is_floating_point()
    ]
    check = sum(int(value.sum()) + 1009 * value.numel() for value in given)
    if _here:
        _here[0].enter(_described(given, named), check)


def _described(given: list[Tensor], named: Any) -> str:
    shapes = [f" of {each.shape[0]} x {each.shape[1]} tokens" for each in given if each.ndim == 2]
    cached = max(cached_length(named.get(name)) for name in CACHE_NAMES)
    return "a forward" + "".join(shapes[:1]) + (f" after {cached} cached" if cached else "")


def _after(module: nn.Module, args: Any, output: Any) -> None:
    if _here:
        _here[0].leave(sys.exc_info()[1])
