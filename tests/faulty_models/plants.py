"""The smallest faults, one at a time and at every place: one position that leaks, one head that is
wrong, one length at which the model raises.

`python tests/faulty_models/plants.py [START STEP]` runs every plant and prints what was missed.

Axes: B batch, H query heads, T positions, S key positions, W hidden width.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from attncheck.attention.call import AttentionCall
from attncheck.attention.layers import layer_index
from attncheck.attention.masks import allowed_BHTS, with_allowed
from attncheck.attention.recorder import capture
from attncheck.core import registry
from attncheck.core.measurement import verdict_of
from attncheck.core.settings import Settings
from attncheck.core.verdict import Verdict
from attncheck.faults.engine.injection import decoder_layers
from attncheck.model.compat import CACHE_NAMES, cached_length
from attncheck.model.subject import Subject
from attncheck.run.measuring import measured_cases
from attncheck.targets.load import load

LENGTH, LAYERS, HEADS = 24, 4, 4
MODELS = ("builtin:gqa", "builtin:window", "builtin:alibi", "builtin:mha", "config:mamba2")
ATTENTIVE = MODELS[:4]
SHARE = 0.1
When = Callable[["Call"], bool]
Keys = Callable[[Tensor], Tensor]


@dataclass
class Call:
    """The forward that runs now: how many tokens are new and cached, and the cache."""

    new: int = 0
    before: int = 0
    cache: Any = None
    use_cache: Any = None


@dataclass(frozen=True)
class Plant:
    """One fault at one place of one model."""

    target: str
    name: str
    plant: Callable[[Subject, Call, contextlib.ExitStack], None]
    probes: tuple[str, ...]


def watched(subject: Subject) -> Call:
    """A record of each forward of the model, filled in before it runs. Tokens are counted here,
    since some caches do not.
    """
    call, counted = Call(), dict[int, int]()

    def before(module: Any, args: Any, named: Any) -> None:
        ids = next(each for each in (*args, *named.values()) if isinstance(each, Tensor))
        previous = call.before + call.new
        call.cache = next((named[n] for n in CACHE_NAMES if named.get(n) is not None), None)
        call.new, call.use_cache = ids.shape[1], named.get("use_cache")
        call.before = 0
        if call.cache is not None:
            known = counted.get(id(call.cache), previous if counted.get(0) else 0)
            call.before = cached_length(call.cache) or known
            counted[id(call.cache)] = call.before + call.new
        counted[0] = int(call.cache is None)

    subject.model.register_forward_pre_hook(before, with_kwargs=True)
    return call


def leaking(layer: int, position: int, when: When, row: int | None = None) -> Any:
    """After one layer, the hidden state of one position gets a share of the next one's."""

    def plant(subject: Subject, call: Call, stack: contextlib.ExitStack) -> None:
        def hook(module: Any, args: Any, output: Any) -> Any:
            hidden_BTW = output[0] if isinstance(output, tuple) else output
            at = position - call.before
            if not (0 <= at < hidden_BTW.shape[1] - 1 and when(call)):
                return output
            rows = slice(None) if row is None else slice(row, row + 1)
            changed_BTW = hidden_BTW.clone()
            changed_BTW[rows, at] += SHARE * hidden_BTW[rows, at + 1]
            return (changed_BTW, *output[1:]) if isinstance(output, tuple) else changed_BTW

        decoder_layers(subject)[layer].register_forward_hook(hook)

    return plant


def reading(layer: int, head: int, keys: Keys) -> Any:
    """One head of one layer reads other keys; `keys` changes allowed_TS."""

    def plant(subject: Subject, call: Call, stack: contextlib.ExitStack) -> None:
        names = {id(module): name for name, module in subject.model.named_modules()}

        def handle(each: AttentionCall) -> Any:
            if layer_index(each.module, names.get(id(each.module), "")) != layer:
                return each.run()
            allowed = allowed_BHTS(each).expand(-1, each.query_BHTD.shape[1], -1, -1).clone()
            for row in range(allowed.shape[0]):
                allowed[row, head] = keys(allowed[row, head])
            return with_allowed(each, allowed).run()

        subject.can.watch.require()
        stack.enter_context(capture(subject.model, handle, inline=not subject.can.kernel))

    return plant


def oldest_lost(allowed_TS: Tensor) -> Tensor:
    """The oldest key of each query that reads more than one."""
    first_TS = (allowed_TS.cumsum(-1) == 1) & allowed_TS
    return torch.where(allowed_TS.sum(-1, keepdim=True) > 1, allowed_TS & ~first_TS, allowed_TS)


def whole_past(allowed_TS: Tensor) -> Tensor:
    """Every key up to the newest that a query reads."""
    newest_T = torch.where(allowed_TS, torch.arange(allowed_TS.shape[1]), -1).amax(-1)
    return torch.arange(allowed_TS.shape[1])[None] <= newest_T[:, None]


def raising(when: When) -> Any:
    """The model raises at one length."""

    def plant(subject: Subject, call: Call, stack: contextlib.ExitStack) -> None:
        def before(module: Any, args: Any) -> None:
            if when(call):
                raise RuntimeError("the size of tensor a must match the size of tensor b")

        decoder_layers(subject)[0].register_forward_pre_hook(before)

    return plant


PATHS: dict[str, When] = {
    "in a prefill with a cache": lambda call: bool(call.use_cache) and not call.before,
    "in a chunk on a cache": lambda call: call.before > 0,
    "on a static cache": lambda call: "Static" in type(call.cache).__name__,
}
FUTURE = ("future-token", "decode-paths", "batch-rows", "cache-kinds")
SPAN = ("window", "reference", "decode-paths")
LENGTHS = ("future-token", "decode-paths", "cache-kinds", "padding", "generate")


def plants() -> Iterator[Plant]:
    """Every plant, model by model."""
    for target in MODELS:
        for position in range(LENGTH - 1):
            fault = leaking(position % LAYERS, position, lambda call: True)
            yield Plant(target, f"position {position} leaks", fault, FUTURE)
    for target in ("builtin:gqa", "builtin:mha"):
        for how, when in PATHS.items():
            for position in range(0 if "chunk" not in how else 1, LENGTH - 1):
                fault = leaking(position % LAYERS, position, when)
                yield Plant(target, f"position {position} leaks {how}", fault, FUTURE)
    for row in range(8):
        for position in (row + 1, 17 - row):
            fault = leaking(1, position, lambda call: True, row)
            name = f"position {position} leaks in sequence {row} of a batch"
            yield Plant("builtin:gqa", name, fault, FUTURE)
    yield from _heads()
    yield from _lengths()


def _heads() -> Iterator[Plant]:
    for target in ATTENTIVE:
        for layer in range(LAYERS):
            for head in range(HEADS):
                place = f"head {head} of layer {layer}"
                fault = reading(layer, head, oldest_lost)
                yield Plant(target, f"{place} reads one key less", fault, SPAN)
                if target == "builtin:window" and layer % 2 == 0:
                    fault = reading(layer, head, whole_past)
                    yield Plant(target, f"{place} ignores its window", fault, SPAN)


def _lengths() -> Iterator[Plant]:
    for target in ("builtin:gqa", "config:mamba2"):
        for n in range(1, LENGTH):
            alone = raising(lambda call, n=n: call.new == n and not call.before)
            yield Plant(target, f"raises at {n} tokens", alone, LENGTHS)
            chunk = raising(lambda call, n=n: call.new == n and call.before > 0)
            yield Plant(target, f"raises on a chunk of {n} tokens", chunk, LENGTHS)
            filled = raising(lambda call, n=n: call.before == n)
            yield Plant(target, f"raises on {n} cached tokens", filled, LENGTHS)


def accuses(subject: Subject, name: str) -> bool:
    """Whether a probe fails the model; it stops at the first case that does."""
    probe = registry.load(name)
    if any(subject.capability(need).reason for need in probe.needs):
        return False
    return any(verdict_of(case) is Verdict.FAIL for case in measured_cases(probe, subject))


@cache
def healthy(target: str, probe: str) -> bool:
    """Whether a probe does not accuse the model without any plant."""
    return not accuses(load(target, Settings()), probe)


def caught_by(plant: Plant) -> str:
    """The first probe that fails with the plant and not without it; empty where none does."""
    subject = load(plant.target, Settings())
    call = watched(subject)
    with contextlib.ExitStack() as stack:
        plant.plant(subject, call, stack)
        for name in plant.probes:
            if accuses(subject, name):
                return name if healthy(plant.target, name) else ""
    return ""


def main(start: int, step: int) -> None:
    """Run every plant, or each `step`th from `start`, and print by which probe it was caught."""
    chosen = list(plants())[start::step]
    caught = 0
    for plant in chosen:
        by = caught_by(plant)
        caught += bool(by)
        print(f"{plant.target}, {plant.name}: {by or 'MISSED'}", flush=True)
    print(f"{caught} of {len(chosen)} caught")


if __name__ == "__main__":
    numbers = [int(each) for each in sys.argv[1:]] or [0, 1]
    main(*numbers)
