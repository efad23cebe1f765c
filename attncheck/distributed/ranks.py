"""Several processes that run one sharded model: they take every step together, and where one
cannot, all end.

Each process runs the same probes on its part of the model. Before every forward they tell each
other what they are about to do; what they measure is exchanged and the worst of it counts on all,
so that no process takes a turn alone. A process that raises where another still waits for it, or
that is gone, ends the run with one message instead of a hang. Without `join` nothing here does
anything.
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
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous

from attncheck.core.errors import Unsupported, UsageError, first_line
from attncheck.model.compat import CACHE_NAMES, cached_length

if TYPE_CHECKING:
    from attncheck.distributed.heartbeat import Watch

T = TypeVar("T")
LONGEST = 1800.0
"""Seconds after which torch itself gives up a collective: a process that computes without an end
ends the run by then.
"""
LIMIT = 120.0
VARIABLE = "ATTNCHECK_TP_TIMEOUT"
AFTER_LOSS = 30.0
BROKEN = ("connection", "closed by peer", "timed out", "reset by peer", "socket", "nccl")
HINT = "start it with: torchrun --nproc-per-node {size} -m attncheck …"


@final
@dataclass
class Ranks:
    """This process among the others. `doing` is what the run is at, in words; `what` the step that
    all take together.
    """

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
            what = ", in ".join(
                each for each in (self.what if self.inside else "", self.doing) if each
            )
            return self.step, what, self.inside

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
            self.inside, self.what = True, what

    def leave(self, error: BaseException | None) -> None:
        """End a forward; where it raised, the others learn it."""
        if error is not None:
            self.raised(error)
        with self.lock:
            self.inside = False

    def raised(self, error: BaseException) -> None:
        """Tell the others what was raised here, unless it only says that another process is gone."""
        if any(sign in str(error).lower() for sign in BROKEN):
            self._lost()
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
            self.watch.end(f"the processes are out of step before {kind}: {self._why_apart(seen)}")

    def _why_apart(self, seen: list[Tensor]) -> str:
        """Who raised, else who is elsewhere."""
        for rank in range(self.size):
            said = self.watch.raised(rank, self.step - 1)
            if said:
                return f"rank {rank} raised {', in '.join(said)}"
        apart = next(rank for rank, each in enumerate(seen) if not torch.equal(each, seen[0]))
        return f"rank {apart} does something else than rank 0"

    def _together(self, call: Any) -> None:
        try:
            call()
        except RuntimeError as error:
            self._lost()
            self.end(f"a process does not answer the others: {first_line(error)}")

    def _lost(self) -> None:
        """Have the watch find out who is gone, and wait for it; return if nobody is."""
        self.watch.lost.set()
        self.watch.named.wait(AFTER_LOSS)
        self.watch.named.clear()

    def end(self, message: str) -> NoReturn:
        """End the run."""
        self.watch.end(message)


_here: list[Ranks] = []


def join(size: int) -> None:
    """Become one of `size` processes, once.

    Raises:
        UsageError: the process was not started as one of that many, or the limit is no number of
        seconds.
    """
    if _here:
        return
    if int(os.environ.get("WORLD_SIZE", "1")) != size:
        raise UsageError(f"tp={size} needs {size} processes: {HINT.format(size=size)}")
    quiet, longest = _limit(), datetime.timedelta(seconds=LONGEST)
    store, rank, _ = next(rendezvous("env://"))
    me = Ranks(rank=rank, size=size, watch=_watch(rank, size, quiet))
    me.watch.now = me.now
    me.watch.start()
    _here.append(me)
    device = torch.accelerator.current_accelerator() if hasattr(torch, "accelerator") else None
    if device is not None:
        torch.accelerator.set_device_index(int(os.environ.get("LOCAL_RANK", "0")))
    backend = "nccl" if device is not None and device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=longest)
    me.group = dist.new_group(backend="gloo", timeout=longest)
    atexit.register(_left_early)


def _limit() -> float:
    """Seconds that a process may neither move nor wait.

    Raises:
        UsageError: the variable holds something else.
    """
    given = os.environ.get(VARIABLE, str(LIMIT))
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise UsageError(f"{VARIABLE}={given}: expected a number of seconds above 0")
    return seconds


def _watch(rank: int, size: int, limit: float) -> Watch:
    """A watch with a connection of its own, so that it never waits behind the main thread."""
    from torch._C._distributed_c10d import PrefixStore, TCPStore

    from attncheck.distributed.heartbeat import Watch

    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    connection = TCPStore(
        address, port, is_master=False, timeout=datetime.timedelta(seconds=AFTER_LOSS)
    )
    store = PrefixStore(
        f"attncheck/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", connection
    )
    return Watch(rank=rank, size=size, store=store, limit=limit, now=lambda: (0, "", False))


def _left_early() -> None:
    """The process that speaks ends before the others, and has said why: they need not."""
    if _here and _here[0].rank == 0:
        with contextlib.suppress(RuntimeError):
            _here[0].watch.store.add("said", 1)


def part() -> None:
    """Wait for the others and be a process of one's own again."""
    if _here:
        _here[0].exchange("the end", None)
        _here[0].watch.stop()
        _here.clear()
        dist.destroy_process_group()


def working_on(text: str) -> None:
    """What the run is at from now on, in words, for the message of a run that ends early."""
    if _here:
        _here[0].doing = text


def failed_alone(error: BaseException) -> None:
    """Something raised outside of a forward: where it did so in one process only, the others learn
    what.
    """
    if _here:
        _here[0].raised(error)


def gathered(kind: str, value: T) -> Sequence[T]:
    """A value of every process, by rank; alone, just this one's."""
    return _here[0].exchange(kind, value) if _here else (value,)


def agreed(kind: str, value: T) -> T:
    """What rank 0 decides: for anything that depends on the clock, on free memory or on one
    process's part of the model.
    """
    return gathered(kind, value)[0]


def by_first(kind: str, call: Callable[[], T]) -> T:
    """What rank 0 computes on its own while the others wait.

    Raises:
        Unsupported: it raised there; all learn why.
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
    """Whether this process is the one that speaks."""
    return not _here or _here[0].rank == 0


@contextlib.contextmanager
def inside(what: str) -> Iterator[None]:
    """Something that all begin together, such as loading, and that must not leave one of them
    waiting.
    """
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
    given = [
        value
        for value in (*args, *named.values())
        if isinstance(value, Tensor) and not value.is_floating_point()
    ]
    check = sum(int(value.sum()) + 1009 * value.numel() for value in given)
    if _here:
        _here[0].enter(_described(given, named), check)


def _described(given: list[Tensor], named: Any) -> str:
    """A forward in words that are the same in every process."""
    tokens = next(
        (f" of {value.shape[0]} x {value.shape[1]} tokens" for value in given if value.ndim == 2),
        "",
    )
    cached = max(cached_length(named.get(name)) for name in CACHE_NAMES)
    return f"a forward{tokens}" + (f" after {cached} cached" if cached else "")


def _after(module: nn.Module, args: Any, output: Any) -> None:
    if _here:
        _here[0].leave(sys.exc_info()[1])
