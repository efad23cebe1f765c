"""attncheck on a model with a fault planted in its sharding: run by torchrun, with the fault's name before the command."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
import torch.distributed as dist

from attncheck.__main__ import main
from attncheck.settings import Settings
from attncheck.subject import load as loading
from attncheck.subject import ranks, sharded
from attncheck.subject.calls import wrap_forward
from attncheck.subject.compat import CACHE_NAMES, cached_length


def doubled(model: Any) -> None:
    """The parts of one layer's output are added up twice."""

    def again(module: Any, args: Any, output: Any) -> Any:
        dist.all_reduce(output)
        return output

    model.get_submodule("model.layers.1.self_attn.o_proj").register_forward_hook(again)


def raises(model: Any) -> None:
    """The second process raises in the middle of its fourth forward, and the first one waits for it."""
    ranks.GRACE = 2.0
    count = [0]

    def hook(module: Any, args: Any, output: Any) -> Any:
        count[0] += 1
        if os.environ["RANK"] == "1" and count[0] == 4:
            raise ZeroDivisionError("planted")
        return output

    model.get_submodule("model.layers.0.self_attn.q_proj").register_forward_hook(hook)


def restarts(model: Any) -> None:
    """Positions start again at every cached call."""

    def edit(call: dict[str, Any]) -> dict[str, Any]:
        if not max(cached_length(call.get(name)) for name in CACHE_NAMES):
            return call
        return {**call, "position_ids": torch.arange(call["input_ids"].shape[1])[None]}

    wrap_forward(model, edit)


FAULTS = {"doubled": doubled, "raises": raises, "restarts": restarts}

if __name__ == "__main__":
    fault, *command = sys.argv[1:]
    read = loading._read

    def planted(target: Any, settings: Settings) -> Any:
        found = read(target, settings)
        if sharded.wanted(settings):
            FAULTS[fault](found[0])
        return found

    loading._read = planted
    sys.exit(main(command))
