"""Signs of life of the processes that share a model: who is slow and who is gone, told apart while
the others wait.

A thread of each process writes down, twice a second, where its main thread is and whether it moves:
it does while it computes, reads, or goes from one line to another. One that waits for others inside
a collective is never at fault. One that does neither for longer than the limit is gone, and so is
one that is not heard of for as long; then all end with one line.
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

POLL = 0.5
GRACE = 3.0
"""Seconds that a process may wait inside what another one has left, and that a beat may be late
before it counts as lost.
"""
LEAST_SILENCE = 30.0
"""Seconds that a beat may always be late: a library that reads a file can keep every thread of its
process waiting.
"""
INTERNAL, INTERRUPTED = 3, 130
NEAR = 8
SOME_WORK = 0.02
BUSY = 0.2
SAID, LEFT = "said", "left"


@final
@dataclass(frozen=True, kw_only=True)
class Beat:
    """What a process says of itself: `still` seconds without moving, `waits` inside a collective,
    `where` in the code.
    """

    number: int
    step: int
    what: str
    still: float
    waits: bool
    where: str


@final
@dataclass
class Pulse:
    """Whether the main thread of this process moves: it changes its place, or time is spent, or a
    disk is read.
    """

    seen: tuple[Any, ...] = ()
    moved: float = field(default_factory=time.monotonic)
    main: float = 0.0
    all: float = 0.0

    def take(self) -> tuple[float, bool, str]:
        """Seconds without moving, whether it waits for others, and its place in the code."""
        now, frames = time.monotonic(), _main_frames()
        usage = resource.getrusage(resource.RUSAGE_SELF)
        seen = (
            tuple((id(frame.f_code), frame.f_lasti) for frame in frames),
            usage.ru_inblock,
            usage.ru_oublock,
            usage.ru_majflt,
        )
        main, everything = _main_seconds(), usage.ru_utime + usage.ru_stime
        busy = everything - self.all > BUSY * max(POLL, now - self.moved)
        if seen != self.seen or main - self.main > SOME_WORK or busy:
            self.seen, self.moved, self.main, self.all = seen, now, main, everything
        return now - self.moved, any(map(_of_torch_distributed, frames[:NEAR])), _place(frames)


def _main_frames() -> list[Any]:
    """The frames of the main thread, innermost first."""
    frame, found = sys._current_frames().get(threading.main_thread().ident or 0), []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found


def _main_seconds() -> float:
    """Seconds that the main thread computed, where the system counts threads apart."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.process_time()
    return time.clock_gettime(time.pthread_getcpuclockid(threading.main_thread().ident or 0))


def _of_torch_distributed(frame: Any) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith("torch.distributed")


def _place(frames: list[Any]) -> str:
    outside = (
        frame
        for frame in frames
        if not str(frame.f_globals.get("__name__", "")).startswith("torch")
    )
    frame = next(outside, None)
    return (
        ""
        if frame is None
        else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} in {frame.f_code.co_name}"
    )


@final
@dataclass
class Watch:
    """The thread that beats, listens to the others and ends the run when one is gone. `store` is
    this thread's own.

    `now` says what this process does: its step, in words, and whether it is inside something that
    all do together.
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

    def start(self) -> None:
        """Begin to beat. A request to terminate wakes the thread even while the main one waits
        outside Python.
        """
        os.set_blocking(self.wake[1], False)
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        ):
            signal.set_wakeup_fd(self.wake[1], warn_on_full_buffer=False)
            signal.signal(signal.SIGTERM, lambda number, frame: None)
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        """Stop beating, and die of signals again."""
        self.over.set()
        with contextlib.suppress(ValueError):
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _run(self) -> None:
        while not self.over.is_set():
            told = bool(
                select.select([self.wake[0]], [], [], POLL)[0]
            ) and signal.SIGTERM in os.read(self.wake[0], 64)
            if self.over.is_set():
                return
            try:
                if told or self.lost.is_set():
                    self._name_the_lost(told)
                self._beat()
                self._listen()
                self._judge()
            except RuntimeError:
                self._without_store()

    def _beat(self) -> None:
        still, waits, where = self.pulse.take()
        step, what, _ = self.now()
        self.number += 1
        beat = Beat(number=self.number, step=step, what=what, still=still, waits=waits, where=where)
        self.heard[self.rank] = (beat, time.monotonic())
        self.store.set(f"beat/{self.rank}", json.dumps(dataclasses.asdict(beat)))

    def _listen(self) -> None:
        if self.store.check([SAID]):
            self._leave(INTERNAL)  # another process has said why
        for rank in range(self.size):
            if rank != self.rank and self.store.check([f"beat/{rank}"]):
                beat = Beat(**json.loads(self.store.get(f"beat/{rank}")))
                if rank not in self.heard or self.heard[rank][0].number != beat.number:
                    self.heard[rank] = (beat, time.monotonic())

    def silent(self, rank: int) -> float:
        """Seconds since a process was last heard of."""
        return time.monotonic() - (self.heard[rank][1] if rank in self.heard else self.started)

    def _judge(self) -> None:
        beats = {rank: beat for rank, (beat, _) in self.heard.items()}
        for rank in range(self.size):
            if self.silent(rank) > (patience := max(self.limit, LEAST_SILENCE)):
                self.end(f"rank {rank} has not been heard of for {patience:g} s{self._last(rank)}")
        stuck = {rank: beat for rank, beat in beats.items() if beat.still > self.limit}
        for rank, beat in stuck.items():
            if not beat.waits:
                self.end(
                    f"rank {rank} has not moved for {self.limit:g} s{self._last(rank)}, at {beat.where}"
                )
        if len(stuck) == self.size:
            places = "; ".join(
                f"rank {rank}{self._last(rank)}, at {beat.where}"
                for rank, beat in sorted(stuck.items())
            )
            self.end(f"all processes wait for each other: {places}")
        self._left_behind(beats)

    def _left_behind(self, beats: dict[int, Beat]) -> None:
        """End when this process waits inside a step that another one has left by raising."""
        mine, inside = beats[self.rank], self.now()[2]
        if not (inside and mine.waits and mine.still > GRACE):
            return
        for rank in sorted(beats):
            said = self.raised(rank, mine.step)
            if said:
                self.end(
                    f"rank {rank} raised {said[0]} in {mine.what}, where rank {self.rank} waits for it"
                )

    def raised(self, rank: int, step: int) -> tuple[str, ...]:
        """What a process raised at a step or later, and what it was doing; empty where it did not."""
        with contextlib.suppress(RuntimeError):
            if self.store.check([f"raised/{rank}"]):
                when, _, text = self.store.get(f"raised/{rank}").decode().partition(" ")
                return tuple(filter(None, text.split("\t"))) if int(when) >= step else ()
        return ()

    def _last(self, rank: int) -> str:
        beat = self.heard[rank][0] if rank in self.heard else None
        return f", in {beat.what}" if beat is not None and beat.what else ""

    def _here(self) -> str:
        what = self.now()[1]
        return f", while rank {self.rank} was in {what}" if what else ""

    def _name_the_lost(self, told: bool) -> None:
        """A connection broke, or this process is told to terminate: say whose process is no more,
        if one is.
        """
        before = time.monotonic()
        while time.monotonic() - before < GRACE:
            self._beat()
            self._listen()
            time.sleep(POLL)
        gone = [rank for rank in range(self.size) if self.silent(rank) > GRACE - POLL]
        if gone:
            self.end(f"rank {gone[0]} has ended without an answer{self._here()}")
        if told:
            self.end("the run was told to terminate", INTERRUPTED)
        self.lost.clear()
        self.named.set()

    def _without_store(self) -> None:
        """The process that all meet at is no more: nothing can be agreed upon, and the lowest that
        is left speaks.
        """
        if self.rank <= 1:
            print(
                f"attncheck: the process that the others meet at has ended{self._here()}",
                file=sys.__stderr__,
                flush=True,
            )
        os._exit(INTERNAL)

    def end(self, message: str, code: int = INTERNAL) -> NoReturn:
        """End this process, and with it the run; only the first that does says why."""
        try:
            first = self.store.add(SAID, 1) == 1
        except RuntimeError:
            first = self.rank <= 1
        if first:
            print(f"attncheck: {message}", file=sys.__stderr__, flush=True)
        self._leave(code)

    def _leave(self, code: int) -> NoReturn:
        """The process that the others may meet at stays until they have seen that the reason is
        said, or for a moment.
        """
        with contextlib.suppress(RuntimeError):
            left, until = self.store.add(LEFT, 1), time.monotonic() + GRACE
            while self.rank == 0 and left < self.size and time.monotonic() < until:
                time.sleep(POLL / 2)
                left = self.store.add(LEFT, 0)
        os._exit(code)
