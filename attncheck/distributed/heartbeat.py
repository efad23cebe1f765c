"""Heartbeats of the processes that share a model: which one is slow, and which one is gone.

A thread of each process writes, twice a second, where its main thread is and whether it makes
progress: it computes, reads, or goes from line to line. A process that waits inside a collective is
never at fault. One that neither waits nor makes progress for longer than the limit is gone, and so
is one whose heartbeats stop; then every process exits, and one of them prints why.

torch's own means were tried first (torch 2.13, gloo) and lack this. A collective that times out
names no rank and closes its connections, so that `monitored_barrier` after it fails at once
without naming one either; a rank that exits is reported by every other as "connection closed by
peer"; nobody is named when rank 0 is the one; and a slow rank looks like one that hangs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import resource
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, final

from attncheck.core.errors import END_PROCESS, INTERNAL, INTERRUPTED

POLL = 0.5
# How long a process may wait inside a step that another one has left, and a heartbeat be late
# after a connection broke.
GRACE = 3.0
# A library that reads a file can hold every thread of its process: silence counts only after this.
LEAST_SILENCE = 30.0
INNERMOST = 8
MAIN_THREAD_WORK = 0.02
BUSY_SHARE = 0.2
REASON, LEFT = "said", "left"
Usage = tuple[int, int, int]


@final
@dataclass(frozen=True, kw_only=True)
class Beat:
    """What a process reports: `still` seconds without progress, whether it `waits` for others."""

    number: int
    step: int
    what: str
    still: float
    waits: bool
    where: str


@final
@dataclass
class Pulse:
    """Whether the main thread makes progress: it changes its place, uses a CPU or reads a disk."""

    seen: tuple[list[tuple[int, int]], Usage] | None = None
    moved: float = field(default_factory=time.monotonic)
    main: float = 0.0
    all: float = 0.0

    def take(self) -> tuple[float, bool, str]:
        """Seconds without progress, whether it waits for others, and its place in the code."""
        now, frames = time.monotonic(), _main_frames()
        usage = resource.getrusage(resource.RUSAGE_SELF)
        places = [(id(frame.f_code), frame.f_lasti) for frame in frames]
        seen = places, (usage.ru_inblock, usage.ru_oublock, usage.ru_majflt)
        # Kernels compute in threads of their own while the main thread stands still.
        main, everything = _main_seconds(), usage.ru_utime + usage.ru_stime
        busy = everything - self.all > BUSY_SHARE * max(POLL, now - self.moved)
        if seen != self.seen or main - self.main > MAIN_THREAD_WORK or busy:
            self.seen, self.moved, self.main, self.all = seen, now, main, everything
        waits = any(_module(frame).startswith("torch.distributed") for frame in frames[:INNERMOST])
        return now - self.moved, waits, _place(frames)


def _main_frames() -> list[Any]:
    """The frames of the main thread, innermost first."""
    frame, found = sys._current_frames().get(threading.main_thread().ident or 0), []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found


def _main_seconds() -> float:
    """CPU seconds of the main thread, where the system counts threads separately."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.process_time()
    return time.clock_gettime(time.pthread_getcpuclockid(threading.main_thread().ident or 0))


def _module(frame: Any) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _place(frames: list[Any]) -> str:
    for frame in frames:
        if not _module(frame).startswith("torch"):
            code = frame.f_code
            return f"{Path(code.co_filename).name}:{frame.f_lineno} in {code.co_name}"
    return ""


@final
@dataclass
class Watch:
    """The thread that sends heartbeats, reads those of the others, and ends the run.

    `now` gives this process's step, the step in words, and whether it is inside something that all
    processes do together. `store` is a connection of this thread's own.
    """

    rank: int
    size: int
    store: Any
    limit: float
    now: Callable[[], tuple[int, str, bool]]
    number: int = 0
    pulse: Pulse = field(default_factory=Pulse)
    heard: dict[int, tuple[Beat, float]] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)
    over: threading.Event = field(default_factory=threading.Event)
    lost: threading.Event = field(default_factory=threading.Event)
    named: threading.Event = field(default_factory=threading.Event)
    wake: tuple[int, int] = field(default_factory=os.pipe)
    thread: threading.Thread | None = None
    handles_signals: bool = False

    def start(self) -> None:
        """Begin to send heartbeats."""
        os.set_blocking(self.wake[1], False)
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            # A Python handler does not run while the main thread waits in a collective; the
            # wake-up descriptor tells this thread of a SIGTERM all the same.
            signal.set_wakeup_fd(self.wake[1], warn_on_full_buffer=False)
            signal.signal(signal.SIGTERM, lambda number, frame: None)
            self.handles_signals = True
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """Stop sending heartbeats and handle signals as before."""
        self.over.set()
        with contextlib.suppress(BlockingIOError):
            os.write(self.wake[1], b"\0")
        if self.thread is not None:
            # A thread that is inside the store when the interpreter ends aborts the process.
            self.thread.join(GRACE)
        if self.handles_signals:
            with contextlib.suppress(ValueError):
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _run(self) -> None:
        while not self.over.is_set():
            signalled = select.select([self.wake[0]], [], [], POLL)[0]
            terminated = bool(signalled) and signal.SIGTERM in os.read(self.wake[0], 64)
            if self.over.is_set():
                return
            try:
                if terminated or self.lost.is_set():
                    self._find_the_lost(terminated)
                self._beat()
                self._listen()
                self._judge()
            except RuntimeError:
                self._end_without_store()

    def _beat(self) -> None:
        still, waits, where = self.pulse.take()
        step, what, _ = self.now()
        self.number += 1
        beat = Beat(number=self.number, step=step, what=what, still=still, waits=waits, where=where)
        self.heard[self.rank] = (beat, time.monotonic())
        self.store.set(f"beat/{self.rank}", json.dumps(dataclasses.asdict(beat)))

    def _listen(self) -> None:
        if self.store.check([REASON]):
            self._leave(INTERNAL)  # another process has printed the reason
        for rank in range(self.size):
            if rank != self.rank and self.store.check([f"beat/{rank}"]):
                beat = Beat(**json.loads(self.store.get(f"beat/{rank}")))
                if rank not in self.heard or self.heard[rank][0].number != beat.number:
                    self.heard[rank] = (beat, time.monotonic())

    def silent(self, rank: int) -> float:
        """Seconds since the last heartbeat of a process."""
        return time.monotonic() - (self.heard[rank][1] if rank in self.heard else self.started)

    def _judge(self) -> None:
        patience = max(self.limit, LEAST_SILENCE)
        for rank in range(self.size):
            if self.silent(rank) > patience:
                self.end(f"{self._named(rank)} has sent no heartbeat for {patience:g} s")
        stuck = {rank: beat for rank, (beat, _) in self.heard.items() if beat.still > self.limit}
        for rank, beat in stuck.items():
            if not beat.waits:
                named = self._named(rank, beat.where)
                self.end(f"{named} has made no progress for {self.limit:g} s")
        if len(stuck) == self.size:
            places = [self._named(rank, beat.where) for rank, beat in sorted(stuck.items())]
            self.end(f"all processes wait for each other: {'; '.join(places)}")
        self._find_the_raised()

    def _find_the_raised(self) -> None:
        """End the run when this process waits inside a step that another one left by raising."""
        mine, inside = self.heard[self.rank][0], self.now()[2]
        if not (inside and mine.waits and mine.still > GRACE):
            return
        for rank in sorted(self.heard):
            if error := self.raised(rank, mine.step):
                self.end(
                    f"rank {rank} raised {error[0]} in {mine.what}, "
                    f"where rank {self.rank} waits for it"
                )

    def raised(self, rank: int, step: int) -> tuple[str, ...]:
        """The error that a process raised at this step or later and what it was doing, or ()."""
        with contextlib.suppress(RuntimeError):
            if self.store.check([f"raised/{rank}"]):
                when, _, text = self.store.get(f"raised/{rank}").decode().partition(" ")
                return tuple(filter(None, text.split("\t"))) if int(when) >= step else ()
        return ()

    def _named(self, rank: int, where: str = "") -> str:
        what = self.heard[rank][0].what if rank in self.heard else ""
        place = [f"in {what}"] * bool(what) + [f"at {where}"] * bool(where)
        return f"rank {rank}" + (f" ({', '.join(place)})" if place else "")

    def _here(self) -> str:
        what = self.now()[1]
        return f" while rank {self.rank} was in {what}" if what else ""

    def _find_the_lost(self, terminated: bool) -> None:
        """After a broken connection or a SIGTERM: name the process that has exited, if one has."""
        before = time.monotonic()
        while time.monotonic() - before < GRACE:
            self._beat()
            self._listen()
            time.sleep(POLL)
        gone = [rank for rank in range(self.size) if self.silent(rank) > GRACE - POLL]
        if gone:
            self.end(f"rank {gone[0]} has exited unexpectedly{self._here()}")
        if terminated:
            self.end("the run was terminated by SIGTERM", INTERRUPTED)
        self.lost.clear()
        self.named.set()

    def _end_without_store(self) -> None:
        # Nothing can be agreed upon without rank 0: the lowest rank that is left prints.
        if self.rank <= 1:
            _print(f"the rendezvous process (rank 0) has exited{self._here()}")
        END_PROCESS(INTERNAL)

    def end(self, message: str, code: int = INTERNAL) -> NoReturn:
        """End this process, and with it the run; the first process that does prints the message."""
        try:
            first = self.store.add(REASON, 1) == 1
        except RuntimeError:
            first = self.rank <= 1
        if first:
            _print(message)
        self._leave(code)

    def _leave(self, code: int) -> NoReturn:
        # Rank 0 may hold the store: it stays until the others have read that a reason is printed.
        with contextlib.suppress(RuntimeError):
            left, until = self.store.add(LEFT, 1), time.monotonic() + GRACE
            while self.rank == 0 and left < self.size and time.monotonic() < until:
                time.sleep(POLL / 2)
                left = self.store.add(LEFT, 0)
        END_PROCESS(code)


def _print(message: str) -> None:
    print(f"attncheck: {message}", file=sys.__stderr__, flush=True)
