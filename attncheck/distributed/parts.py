"""The outputs of a sharded model's modules against the whole model's, and what the parts add up to.

Axes: B batch, T positions, V vocabulary, K numbers kept for each position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from attncheck.core.measurement import BEYOND_ROUNDING
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.subject import Subject
from attncheck.numerics.divergence import beyond, max_abs
from attncheck.numerics.first_divergence import first_divergence
from attncheck.numerics.module_outputs import (
    Event,
    ModuleOutputs,
    Recorder,
    outputs_with_floors,
    recording,
)

SLACK = 1e-9


@final
@dataclass(frozen=True)
class WholeForward:
    """One forward of the whole model: its logits, its modules' outputs and its budget."""

    logits_BTV: Tensor
    outputs: ModuleOutputs
    budget: float


def outputs_of(subject: Subject, spec: ForwardSpec) -> ModuleOutputs:
    """The outputs of the modules that run once in each chunk.

    The last of several calls would say nothing about the order of execution.
    """
    with recording(_modules(subject)) as recorder:
        subject.passes.replay(spec)
    return recorder.outputs(_shape(spec), _calls(spec))


def whole_forward(whole: Subject, spec: ForwardSpec) -> WholeForward:
    """One forward of the whole model."""
    logits_BTV = whole.logits(spec)
    outputs = outputs_with_floors(
        _modules(whole), lambda: whole.passes.replay(spec), _shape(spec), calls=_calls(spec)
    )
    return WholeForward(logits_BTV.cpu(), outputs, whole.budget.value)


def _modules(subject: Subject) -> dict[str, nn.Module]:
    return {name: module for name, module in subject.model.named_modules() if name}


def _shape(spec: ForwardSpec) -> tuple[int, int]:
    return len(spec.tokens), spec.length


def _calls(spec: ForwardSpec) -> int:
    return max(1, len(spec.chunks))


def first_apart(whole: ModuleOutputs, ranks: Sequence[ModuleOutputs]) -> Event | None:
    """The first event, in the whole model's order, that a process has in full and that differs."""
    found = [first_divergence(whole, each, skip_parts=True) for each in ranks]
    events = [each.event for each in found if each is not None]
    return min(events, key=list(whole).index, default=None)


def is_whole(event: Event, whole: ModuleOutputs, ranks: Sequence[ModuleOutputs]) -> bool:
    """Whether every process has the whole output of the module."""
    return event in whole and all(
        event in each and each[event].width == whole[event].width for each in ranks
    )


def is_part(event: Event, whole: ModuleOutputs, ranks: Sequence[ModuleOutputs]) -> bool:
    """Whether each process has an equal part of the module's output."""
    return all(
        event in each and each[event].width * len(ranks) == whole[event].width for each in ranks
    )


def parts_of(whole: Subject, name: str, spec: ForwardSpec, count: int) -> list[Tensor]:
    """Fingerprints of the slices of a module's output that belong to each process."""
    recorder = Recorder()

    def hook(module: nn.Module, args: Any, output: Any) -> None:
        for rank, part in enumerate(output.chunk(count, -1)):
            recorder.note((name, str(rank)), part)

    with whole.model.get_submodule(name).register_forward_hook(hook):
        whole.passes.replay(spec)
    outputs = recorder.outputs(_shape(spec), _calls(spec))
    return [outputs[(name, str(rank))].print_BTK for rank in range(count)]


def whose(print_BTK: Tensor, parts: list[Tensor]) -> int | None:
    """The rank whose part this is; None where it is no single one's."""
    scale = max(map(max_abs, parts))
    near = [rank for rank, part in enumerate(parts) if not beyond(print_BTK, part, SLACK * scale)]
    return near[0] if len(near) == 1 else None


def bias_of(model: nn.Module, name: str) -> Tensor | None:
    """The fingerprint of a module's bias, if it has one."""
    bias = getattr(model.get_submodule(name), "bias", None)
    if not isinstance(bias, Tensor):
        return None
    recorder = Recorder()
    recorder.note((name, "bias"), bias.detach().reshape(1, 1, -1))
    return recorder.prints[(name, "bias")][0]


def what_adds_up(
    whole: ModuleOutputs, ranks: Sequence[ModuleOutputs], event: Event, bias_K: Tensor | None
) -> str:
    """What the outputs of all processes add up to at an event; empty where nothing known fits."""
    good, found = whole[event].print_BTK, [each[event].print_BTK for each in ranks]
    least = torch.finfo(good.dtype).eps * max_abs(good.nan_to_num(0.0))
    near, size = BEYOND_ROUNDING * max(whole[event].floor, least), len(ranks)
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
