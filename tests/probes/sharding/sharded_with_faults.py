"""Faults in how the parts of a sharded model are made and put together, each held against the
whole: run by torchrun.

One line of JSON from the first process: by fault, the verdict, the module that is named, the first
failing case's note, and whether the fault that is injected behind a pass was noticed. A type that is
named instead of a fault is healthy.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from attncheck.core.measurement import verdict_of
from attncheck.core.settings import Settings
from attncheck.core.verdict import Verdict
from attncheck.distributed import ranks
from attncheck.run.implicit import implicit_finding
from attncheck.targets.load import load

ATTENTION = "model.layers.1.self_attn"


def doubled(model: Any) -> None:
    """What is added up already is added up again."""

    def again(module: Any, args: Any, output: Any) -> Any:
        dist.all_reduce(output)
        return output

    model.get_submodule(f"{ATTENTION}.o_proj").register_forward_hook(again)


def missing(model: Any) -> None:
    """The parts of one layer's output are not added up."""
    module = model.get_submodule("model.layers.0.mlp.down_proj")
    module.forward = lambda given: F.linear(given, module.weight.to_local())


def biased(model: Any) -> None:
    """The bias of a layer is added before the parts are."""
    module = model.get_submodule(f"{ATTENTION}.o_proj")

    def forward(given: Any) -> Any:
        part = F.linear(given, module.weight.to_local(), module.bias.to_local())
        dist.all_reduce(part)
        return part

    module.forward = forward


def swapped(model: Any) -> None:
    """Each process is given the weights of the other's heads."""
    weight = model.get_submodule(f"{ATTENTION}.q_proj").weight.to_local()
    with torch.no_grad():
        weight.copy_(_of_rank(weight, 1 - dist.get_rank()))


def exchanged(model: Any) -> None:
    """Each process computes with the other's values."""
    hook: Callable[..., Any] = lambda module, args, output: _of_rank(output, 1 - dist.get_rank())  # noqa: E731
    model.get_submodule(f"{ATTENTION}.v_proj").register_forward_hook(hook)


def first_keys(model: Any) -> None:
    """All processes read the key heads of the first."""
    hook: Callable[..., Any] = lambda module, args, output: _of_rank(output, 0)  # noqa: E731
    model.get_submodule(f"{ATTENTION}.k_proj").register_forward_hook(hook)


def _of_rank(mine: torch.Tensor, rank: int) -> torch.Tensor:
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine.contiguous())
    return parts[rank]


PLANTS: dict[str, tuple[str, Callable[[Any], None]]] = {
    "doubled": ("llama", doubled),
    "missing": ("llama", missing),
    "biased": ("starcoder2", biased),
    "swapped": ("qwen3", swapped),
    "exchanged": ("llama", exchanged),
    "first_keys": ("gemma3_text", first_keys),
}

if __name__ == "__main__":
    found: dict[str, Any] = {}
    for name in sys.argv[1:]:
        kind, inject = PLANTS.get(name, (name, lambda model: None))
        subject = load(f"config:{kind}", Settings(tp=2, length=14, layers=2))
        inject(subject.model)
        finding = implicit_finding(subject, "sharding")
        assert finding is not None
        place = finding.location.module if finding.location else None
        notes = [
            case.note for case in finding.cases if verdict_of(case) in (Verdict.FAIL, Verdict.WARN)
        ]
        cases = [[case.name, verdict_of(case).value] for case in finding.cases]
        noticed = [control.detected for control in finding.controls]
        found[name] = [
            finding.verdict.value,
            place,
            notes[0] if notes else finding.summary,
            noticed,
            cases,
        ]
    ranks.part()
    if os.environ["RANK"] == "0":
        print(json.dumps(found))
