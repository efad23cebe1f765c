"""attncheck on a model with a fault injected in its sharding: run by torchrun, with the fault's name
before the command.

With several names, joined by commas, each is run by two processes of its own, made here: one line
of JSON says how they ended.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from attncheck.__main__ import main
from attncheck.core.errors import END_PROCESS
from attncheck.core.settings import Settings
from attncheck.model.compat import CACHE_NAMES, cached_length
from attncheck.model.forward import wrap_forward
from attncheck.model.subject import Subject
from attncheck.targets import load as loading
from attncheck.targets import sharded


def doubled(model: Any) -> None:
    """The parts of one layer's output are added up twice."""

    def again(module: Any, args: Any, output: Any) -> Any:
        dist.all_reduce(output)
        return output

    model.get_submodule("model.layers.1.self_attn.o_proj").register_forward_hook(again)


def raises(model: Any) -> None:
    """The second process raises in the middle of its fourth forward, and the first one waits for
    it.
    """

    def act() -> None:
        raise ZeroDivisionError("injected")

    in_the_fourth_forward(model, act)


def sleeps(model: Any) -> None:
    """The second process stops in the middle of its fourth forward without a word."""
    in_the_fourth_forward(model, lambda: time.sleep(10_000))


def slow(model: Any) -> None:
    """The second process computes for longer than the limit in its fourth forward."""

    def act() -> None:
        value, until = torch.randn(600, 600), time.monotonic() + 7.0
        while time.monotonic() < until:
            value = value @ value / 600.0

    in_the_fourth_forward(model, act)


def exits(model: Any) -> None:
    """The second process exits in the middle of its fourth forward."""
    in_the_fourth_forward(model, lambda: END_PROCESS(7))


def asks_to_exit(model: Any) -> None:
    """The model's own code asks for the end of the second process in its fourth forward."""
    in_the_fourth_forward(model, lambda: os._exit(7))


def raises_outside(model: Any) -> None:
    """The second process raises between two forwards."""
    usual = Subject.compare

    def compare(self: Subject, *args: Any, **named: Any) -> Any:
        if os.environ["RANK"] == "1":
            raise ZeroDivisionError("injected")
        return usual(self, *args, **named)

    Subject.compare = compare  # type: ignore[method-assign]


def in_the_fourth_forward(model: Any, act: Callable[[], None]) -> None:
    """Something that the second process alone does there."""
    count = [0]

    def hook(module: Any, args: Any, output: Any) -> None:
        count[0] += 1
        if os.environ["RANK"] == "1" and count[0] == 4:
            act()

    model.get_submodule("model.layers.0.self_attn.q_proj").register_forward_hook(hook)


def restarts(model: Any) -> None:
    """Positions start again at every cached call."""

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        if not max(cached_length(call.get(name)) for name in CACHE_NAMES):
            return call
        return {**call, "position_ids": torch.arange(call["input_ids"].shape[1])[None]}

    wrap_forward(model, edit)


def first_exits(model: Any) -> None:
    """The first process, at which the others meet, exits."""

    def hook(module: Any, args: Any, output: Any) -> None:
        if os.environ["RANK"] == "0":
            END_PROCESS(7)

    model.get_submodule("model.layers.0.self_attn.q_proj").register_forward_hook(hook)


FAULTS = {
    each.__name__: each
    for each in (
        doubled,
        raises,
        raises_outside,
        sleeps,
        slow,
        asks_to_exit,
        exits,
        first_exits,
        restarts,
    )
}


def run(fault: str, command: list[str]) -> int:
    """The command in this process, with the fault injected once a sharded model is loaded."""
    read = loading._read

    def injected(target: Any, settings: Settings) -> Any:
        found = read(target, settings)
        if sharded.wanted(settings):
            FAULTS[fault](found[0])
        return found

    loading._read = injected
    return main(command)


def forked(fault: str, command: list[str], folder: Path) -> list[int]:
    """Two processes made of this one, which has everything loaded; each leaves what it says in a
    file.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free.getsockname()[1]),
            "WORLD_SIZE": "2",
        }
    made = []
    for rank in ("0", "1"):
        made.append(os.fork())
        if not made[-1]:
            os.environ.update(place, RANK=rank)
            said = os.open(folder / f"{fault}-{rank}", os.O_WRONLY | os.O_CREAT)
            os.dup2(said, 1)
            os.dup2(said, 2)
            code = run(fault, command)
            sys.stdout.flush()
            END_PROCESS(code)
    return made


def all_forked(faults: list[str], command: list[str]) -> dict[str, Any]:
    """The exit codes and lines of every fault's two processes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = {fault: forked(fault, command, folder) for fault in faults}
        codes = {
            fault: [os.waitstatus_to_exitcode(os.waitpid(each, 0)[1]) for each in pids]
            for fault, pids in made.items()
        }
        lines = {
            fault: [(folder / f"{fault}-{rank}").read_text().splitlines() for rank in (0, 1)]
            for fault in faults
        }
    said = {
        fault: [line for each in both for line in each if line.startswith("attncheck:")]
        for fault, both in lines.items()
    }
    return {fault: [codes[fault], said[fault]] for fault in faults}


if __name__ == "__main__":
    fault, *command = sys.argv[1:]
    if "," in fault:
        print(json.dumps(all_forked(fault.split(","), command)))
        sys.exit(0)
    sys.exit(run(fault, command))
