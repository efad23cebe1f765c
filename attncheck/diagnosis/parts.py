"""What the modules of a sharded model put out against those of the whole model: fingerprints, and
what those of parts add up to.

A fingerprint is a sum of the numbers at a position, so that the fingerprints of parts add up as the
parts do.

Axes: B batch, T positions, V vocabulary, K numbers kept for each position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from attncheck.core.finding import BEYOND_ROUNDING
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.subject import Subject
from attncheck.numerics.divergence import beyond, max_abs
from attncheck.numerics.module_outputs import Event, Trace, tracing
from attncheck.numerics.reorder import Reorder

SHARE = 0.5
SLACK = 1e-9


@final
@dataclass(frozen=True)
class Seen:
    """The fingerprints of one pass by event, in the order of execution, and how many numbers a
    position had.
    """

    prints: Mapping[Event, Tensor]
    widths: Mapping[Event, int]


@final
@dataclass(frozen=True)
class Right:
    """One pass of the whole model: its logits, what its modules put out, and what rounding does to
    either.
    """

    logits_BTV: Tensor
    seen: Seen
    floors: Mapping[Event, float]
    budget: float


def seen_of(subject: Subject, spec: ForwardSpec) -> Seen:
    """What every module puts out in one pass."""
    modules = {name: module for name, module in subject.model.named_modules() if name}
    with tracing(modules) as trace:
        subject.passes.replay(spec)
    return _kept(trace, spec)


def _kept(trace: Trace, spec: ForwardSpec) -> Seen:
    """Of modules that run once in a forward: the last of several calls says nothing about the order
    of execution.
    """
    shape = (len(spec.tokens), spec.length)
    once = [event for event, each in trace.prints.items() if len(each) == max(1, len(spec.chunks))]
    prints = {event: trace.print_BTK(event, shape) for event in once}
    return Seen({event: each for event, each in prints.items() if each is not None}, trace.widths)


def right_of(whole: Subject, spec: ForwardSpec) -> Right:
    """One pass of the whole model."""
    logits_BTV, seen = whole.logits(spec), seen_of(whole, spec)
    with Reorder(SHARE):
        moved = seen_of(whole, spec)
    floors = {event: _floor(seen.prints[event], moved.prints.get(event)) for event in seen.prints}
    return Right(logits_BTV.cpu(), seen, floors, whole.budget.value)


def _floor(print_BTK: Tensor, moved_BTK: Tensor | None) -> float:
    least = torch.finfo(print_BTK.dtype).eps * float(print_BTK.abs().nan_to_num(0.0).max())
    return max(
        least,
        0.0 if moved_BTK is None else float((print_BTK - moved_BTK).abs().nan_to_num(0.0).max()),
    )


def first_apart(right: Right, seen: Sequence[Seen]) -> Event | None:
    """The first event, in the order of the whole model, that a process has whole and otherwise."""
    for event, good in right.seen.prints.items():
        for each in seen:
            other = each.prints.get(event)
            if other is None or each.widths[event] != right.seen.widths[event]:
                continue  # a part
            if other.shape != good.shape or not bool(
                ((other - good).abs() <= BEYOND_ROUNDING * right.floors[event]).all()
            ):
                return event
    return None


def is_whole(event: Event, right: Seen, seen: Sequence[Seen]) -> bool:
    """Whether every process has all of what the whole module puts out."""
    return all(
        event in each.prints and each.widths[event] == right.widths.get(event) for each in seen
    )


def is_part(event: Event, right: Seen, seen: Sequence[Seen]) -> bool:
    """Whether every process has one part of as many of what the whole module puts out."""
    return all(
        event in each.prints and each.widths[event] * len(seen) == right.widths[event]
        for each in seen
    )


def parts_of(whole: Subject, name: str, spec: ForwardSpec, count: int) -> list[Tensor]:
    """Fingerprints of the slices of a module's output that belong to each process."""
    trace = Trace()

    def hook(module: nn.Module, args: Any, output: Any) -> None:
        for rank, part in enumerate(output.chunk(count, -1)):
            trace.note((name, str(rank)), part)

    with whole.model.get_submodule(name).register_forward_hook(hook):
        whole.passes.replay(spec)
    kept = _kept(trace, spec).prints
    return [kept[(name, str(rank))] for rank in range(count)]


def whose(print_BTK: Tensor, parts: list[Tensor]) -> int | None:
    """Whose part this is, where it is one's."""
    scale = max(map(max_abs, parts))
    near = [rank for rank, part in enumerate(parts) if not beyond(print_BTK, part, SLACK * scale)]
    return near[0] if len(near) == 1 else None


def bias_of(model: nn.Module, name: str) -> Tensor | None:
    """The fingerprint of a module's bias, if it has one."""
    bias = getattr(model.get_submodule(name), "bias", None)
    if not isinstance(bias, Tensor):
        return None
    trace = Trace()
    trace.note((name, "bias"), bias.detach().reshape(1, 1, -1))
    return trace.prints[(name, "bias")][0]


def what_adds_up(right: Right, seen: Sequence[Seen], event: Event, bias_K: Tensor | None) -> str:
    """What the outputs of all processes come to at an event, in words; empty where it is nothing
    known.
    """
    good, found = right.seen.prints[event], [each.prints[event] for each in seen]
    near, size = BEYOND_ROUNDING * right.floors[event], len(seen)
    if not beyond(sum(found[1:], found[0]), good, near):
        return "each process has its own part: the parts are not added up"
    sums = {
        f"{times} times what it should be: its parts are added up more than once": times * good
        for times in (size, 2)
    }
    if bias_K is not None:
        sums["its bias is added in every process"] = good + (size - 1) * bias_K.to(good.dtype)
    for words, wanted in sums.items():
        if not any(beyond(each, wanted, near) for each in found):
            return words
    return ""
