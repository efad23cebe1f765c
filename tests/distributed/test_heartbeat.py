"""Slow and gone are told apart: a process that computes moves, one that sleeps does not, one inside
a collective waits.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch
from conftest import tiny_llama

from attncheck.core.errors import Unsupported
from attncheck.distributed import ranks
from attncheck.distributed.heartbeat import Beat, Pulse, Watch
from attncheck.targets import sharded


def watched(seconds: float, act: Any) -> list[tuple[float, bool, str]]:
    """What a pulse says, a few times, while the main thread does something."""
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


def test_one_that_sleeps_does_not_move_and_says_where_it_is() -> None:
    still, waits, where = watched(1.2, time.sleep)[-1]
    assert still > 0.8
    assert not waits
    assert where.startswith("test_heartbeat.py:")
    assert where.endswith("in watched")


def test_one_that_computes_moves() -> None:
    assert max(still for still, _, _ in watched(1.2, compute)) < 0.8


class Told(Exception):
    """What `end` would have said."""


class Meeting:
    """A place to meet that one process alone uses."""

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
    """What the first of these processes says of all, at a limit of 10 seconds."""

    def end(self: Watch, message: str, code: int = 3) -> None:
        raise Told(message)

    monkeypatch.setattr(Watch, "end", end)
    watch = Watch(
        rank=0,
        size=len(beats),
        store=Meeting(),
        limit=10.0,
        now=lambda: (beats[0].step, beats[0].what, inside),
    )
    watch.heard = {rank: (beat, time.monotonic()) for rank, beat in enumerate(beats)}
    if raised:
        watch.store.set("raised/1", f"{beats[0].step} {raised}")
    try:
        watch._judge()
    except Told as told:
        return str(told)
    return ""


def beat(still: float, *, waits: bool) -> Beat:
    return Beat(
        number=1, step=4, what="a forward", still=still, waits=waits, where="model.py:7 in forward"
    )


def test_who_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting, computing = beat(60.0, waits=True), beat(0.0, waits=False)
    assert judged(monkeypatch, waiting, computing) == ""
    assert judged(monkeypatch, waiting, beat(9.0, waits=False)) == ""
    gone = judged(monkeypatch, waiting, beat(11.0, waits=False))
    assert gone == "rank 1 has not moved for 10 s, in a forward, at model.py:7 in forward"
    assert judged(monkeypatch, waiting, waiting).startswith(
        "all processes wait for each other: rank 0, in a forward, at model"
    )


def test_one_that_raised_is_waited_for_only_where_others_are_inside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waiting, on_its_way = beat(4.0, waits=True), beat(0.0, waits=False)
    said = judged(monkeypatch, waiting, on_its_way, raised="ValueError: odd")
    assert said == "rank 1 raised ValueError: odd in a forward, where rank 0 waits for it"
    assert judged(monkeypatch, waiting, on_its_way, inside=False, raised="ValueError: odd") == ""
    assert judged(monkeypatch, beat(1.0, waits=True), on_its_way, raised="ValueError: odd") == ""


def test_silence_counts_only_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(rank=0, size=2, store=Meeting(), limit=10.0, now=lambda: (0, "", False))
    watch.started = time.monotonic() - 29.0
    monkeypatch.setattr(Watch, "end", lambda self, message, code=3: pytest.fail(message))
    watch._beat()
    watch._judge()
    watch.started = time.monotonic() - 31.0
    with pytest.raises(pytest.fail.Exception, match="rank 1 has not been heard of for 30 s"):
        watch._judge()


def test_alone_the_first_process_just_computes() -> None:
    assert ranks.by_first("a sum", lambda: 3) == 3
    assert ranks.first()


def test_the_whole_model_is_held_only_where_it_fits_and_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, device = tiny_llama(), torch.device("cpu")
    assert sharded.why_not_whole(model, (device,)) == (device, "")
    monkeypatch.setattr(sharded, "free_memory", lambda device: 1000)
    where, reason = sharded.why_not_whole(model, (device,))
    assert where is None
    assert "does not fit beside the parts" in reason
    sharded.remember_whole(model, lambda: tiny_llama())
    assert sharded.whole_of(model, device) is not model
    with pytest.raises(Unsupported, match="a second time"):
        sharded.whole_of(model, device)
