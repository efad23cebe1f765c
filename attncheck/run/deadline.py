"""A time limit for one target, which names the forward that it was in when the time was up."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import final

from torch import nn

from attncheck.core.finding import Finding
from attncheck.core.verdict import Verdict
from attncheck.model.forward_spec import ForwardSpec

SHOWN = 4
AGAIN = 1.0
"""Seconds after which the limit strikes again, if a model has swallowed it."""


@final
class TimeUp(KeyboardInterrupt):
    """The time of a target is up. No `Exception`, since nothing may take it for one of the model's.

    It says what ran at that moment.
    """


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """End what runs inside after so many seconds, in the main thread of a POSIX system.

    Raises:
        TimeUp: the time is up.
    """

    def strike(_: int, frame: FrameType | None) -> None:
        raise TimeUp(f"not finished after {seconds:g} seconds{place_of(frame)}")

    before = signal.signal(signal.SIGALRM, strike)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def hung(probe: str, hang: TimeUp) -> Finding:
    """The finding of the probe that ran when the time was up."""
    return Finding(probe=probe, verdict=Verdict.ERROR, summary=str(hang), error=str(hang))


@contextlib.contextmanager
def at_home() -> Iterator[None]:
    """Come back to this folder, to which targets are relative, wherever a model changes to."""
    home = Path.cwd()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.chdir(home)


def place_of(frame: FrameType | None) -> str:
    """What runs in a frame, in words: the forward, the module and the line."""
    frames = list(_outwards(frame))
    parts = [_forward(frames), _module(frames), _line(frames)]
    return "".join(f", in {part}" for part in parts if part)


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _forward(frames: list[FrameType]) -> str:
    specs = (each.f_locals.get("spec") for each in frames)
    spec = next((each for each in specs if isinstance(each, ForwardSpec)), None)
    if spec is None:
        return ""
    sizes = [str(size) for size in spec.chunks[:SHOWN]] + ["…"] * (len(spec.chunks) > SHOWN)
    chunks = f" in chunks of {'+'.join(sizes)}" if sizes else ""
    return f"a forward of {len(spec.tokens)} x {spec.length} tokens{chunks}"


def _module(frames: list[FrameType]) -> str:
    """The innermost module that runs, by its name in the model."""
    owners = [each.f_locals.get("self") for each in frames]
    inner = next((each for each in owners if isinstance(each, nn.Module)), None)
    outer = [each for each in owners if isinstance(each, nn.Module)]
    names = {id(each): name for name, each in outer[-1].named_modules()} if outer else {}
    return str(names.get(id(inner), ""))


def _line(frames: list[FrameType]) -> str:
    """The innermost line of Python."""
    if not frames:
        return ""
    code = frames[0].f_code
    return f"{code.co_name} ({Path(code.co_filename).name}:{frames[0].f_lineno})"
