"""Heartbeats: a process that computes makes progress, one that sleeps does not, and one inside a
collective waits.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import pytest
import torch

from attncheck.distributed.heartbeat import Beat, Pulse, Watch


def watched(seconds: float, act: Any) -> list[tuple[float, bool, str]]:
    """What a pulse reports, a few times, while the main thread does something."""
    pulse, found, over = Pulse(), [], threading.Event()

    def look() -> None:
        while not over.wait(0.1):
            found.append(pulse.take())

    thread = threading.Thread(target=look)
    thread.start()
    act(seconds)
    over.set()
    thread.join()
    return found


def compute(seconds: float) -> None:
    value, until = torch.randn(200, 200), time.monotonic() + seconds
    while time.monotonic() < until:
        value = value @ value / 200


def test_a_process_that_sleeps_makes_no_progress_and_reports_its_place() -> None:
    still, waits, where = watched(1.2, time.sleep)[-1]
    assert still > 0.8
    assert not waits
    assert where.startswith("test_heartbeat.py:")
    assert where.endswith("in watched")


def test_a_process_that_computes_makes_progress() -> None:
    assert max(still for still, _, _ in watched(1.2, compute)) < 0.8


class Ended(Exception):
    """The message that `end` would have printed."""


class LocalStore:
    """A store that a single process uses."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def check(self, names: list[str]) -> bool:
        return all(name in self.kept for name in names)

    def set(self, name: str, value: str) -> None:
        self.kept[name] = value.encode()

    def get(self, name: str) -> bytes:
        return self.kept[name]


def judged(
    monkeypatch: pytest.MonkeyPatch, *beats: Beat, inside: bool = True, raised: str = ""
) -> str:
    """The message with which the first of these processes ends the run, at a limit of 10 s."""

    def end(self: Watch, message: str, code: int = 3) -> None:
        raise Ended(message)

    monkeypatch.setattr(Watch, "end", end)
    watch = Watch(
        rank=0,
        size=len(beats),
        store=LocalStore(),
        limit=10.0,
        now=lambda: (beats[0].step, beats[0].what, inside),
    )
    watch.heard = {rank: (beat, time.monotonic()) for rank, beat in enumerate(beats)}
    if raised:
        watch.store.set("raised/1", f"{beats[0].step} {raised}")
    try:
        watch._judge()
    except Ended as ended:
        return str(ended)
    return ""


def beat(still: float, *, waits: bool) -> Beat:
    return Beat(
        number=1, step=4, what="a forward", still=still, waits=waits, where="model.py:7 in forward"
    )


def test_a_process_that_neither_waits_nor_makes_progress_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waiting, computing = beat(60.0, waits=True), beat(0.0, waits=False)
    assert judged(monkeypatch, waiting, computing) == ""
    assert judged(monkeypatch, waiting, beat(9.0, waits=False)) == ""
    gone = judged(monkeypatch, waiting, beat(11.0, waits=False))
    assert gone == "rank 1 (in a forward, at model.py:7 in forward) has made no progress for 10 s"
    assert judged(monkeypatch, waiting, waiting).startswith(
        "all processes wait for each other: rank 0 (in a forward, at model"
    )


def test_a_process_that_raised_ends_the_run_where_others_wait_inside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waiting, on_its_way = beat(4.0, waits=True), beat(0.0, waits=False)
    said = judged(monkeypatch, waiting, on_its_way, raised="ValueError: bad")
    assert said == "rank 1 raised ValueError: bad in a forward, where rank 0 waits for it"
    assert judged(monkeypatch, waiting, on_its_way, inside=False, raised="ValueError: bad") == ""
    assert judged(monkeypatch, beat(1.0, waits=True), on_its_way, raised="ValueError: bad") == ""


def test_missing_heartbeats_count_only_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(rank=0, size=2, store=LocalStore(), limit=10.0, now=lambda: (0, "", False))
    watch.started = time.monotonic() - 29.0
    monkeypatch.setattr(Watch, "end", lambda self, message, code=3: pytest.fail(message))
    watch._beat()
    watch._judge()
    watch.started = time.monotonic() - 31.0
    with pytest.raises(pytest.fail.Exception, match="rank 1 has sent no heartbeat for 30 s"):
        watch._judge()


def test_no_thread_is_left_when_heartbeats_stop() -> None:
    watch = Watch(rank=0, size=1, store=LocalStore(), limit=10.0, now=lambda: (0, "", False))
    watch.start()
    assert watch.thread is not None
    assert watch.thread.is_alive()
    watch.stop()
    assert not watch.thread.is_alive()


def test_a_signal_that_another_part_handles_stays_with_it() -> None:
    def handler(number: int, frame: object) -> None:
        """Do nothing."""

    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    before, usual = signal.signal(signal.SIGTERM, handler), signal.set_wakeup_fd(writes)
    try:
        watch = Watch(rank=0, size=1, store=LocalStore(), limit=10.0, now=lambda: (0, "", False))
        watch.start()
        watch.stop()
        assert signal.getsignal(signal.SIGTERM) is handler
        assert signal.set_wakeup_fd(usual) == writes
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.set_wakeup_fd(usual)
        os.close(reads)
        os.close(writes)
