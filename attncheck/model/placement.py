"""Where a model's weights live: on one device, spread over several, or offloaded, which means that
they are loaded layer by layer.
"""

from __future__ import annotations

import functools
import json
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attncheck.core.errors import TargetError, first_line
from attncheck.model.quantized import answer_in_float64, quantized_kind
from attncheck.model.weights import ELSEWHERE

STRATEGIES = ("auto", "balanced", "balanced_low_0", "sequential")
"""The device maps that the library makes by itself."""


def input_device(model: nn.Module) -> torch.device:
    """Where token ids go: the device of the first weights that are in memory, otherwise the one on
    which the first layer runs.
    """
    placed = (each.device for each in model.parameters() if each.device.type != ELSEWHERE)
    found = next(placed, None) or next(filter(None, map(_runs_on, model.modules())), None)
    return found or torch.device("cpu")


def _runs_on(module: nn.Module) -> torch.device | None:
    """The device on which accelerate runs a module whose weights it loads."""
    device = getattr(getattr(module, "_hf_hook", None), "execution_device", None)
    return None if device is None else torch.empty(0, device=device).device


def offloaded(model: nn.Module) -> int:
    """How many parameters are elsewhere until their layer runs."""
    return sum(each.numel() for each in model.parameters() if each.device.type == ELSEWHERE)


def why_not_cast(model: nn.Module) -> str | None:
    """Why the weights cannot take another dtype, or None."""
    count, kind = offloaded(model), quantized_kind(model)
    if kind is not None:
        return f"the weights are quantized ({kind}), and quantized weights cannot be cast"
    if not count:
        return None
    share = count / sum(each.numel() for each in model.parameters())
    return f"{share:.0%} of the weights are offloaded, and offloaded weights cannot be cast"


def why_not_nudged(model: nn.Module) -> str | None:
    """Why no step can be taken along the weights themselves, or None."""
    if offloaded(model):
        return "the weights are offloaded: no step along them can be taken here"
    kinds = {type(each.data).__name__ for each in model.parameters()} - {Tensor.__name__}
    kind = min(kinds, default=quantized_kind(model))
    if kind is None:
        return None
    return f"the weights are sharded or quantized ({kind}): no step along them can be taken here"


def move(model: nn.Module, device: torch.device) -> None:
    """Move a model to a device, unless it is spread over several or there already."""
    spread: Mapping[str, Any] = getattr(model, "hf_device_map", None) or {}
    if len(set(spread.values())) > 1:
        return
    here = input_device(model)
    if (here.type, here.index or 0) != (device.type, device.index or 0):
        model.to(device)


def load_as_stored(model: nn.Module) -> None:
    """Have weights loaded, offloaded and dequantized unchanged, whatever numerics a forward runs
    under.
    """
    answer_in_float64(model)
    hooks = {
        id(hook): hook
        for module in model.modules()
        if (hook := getattr(module, "_hf_hook", None)) is not None
    }
    for hook in hooks.values():
        for name in ("pre_forward", "post_forward"):
            bound = getattr(hook, name)
            if not hasattr(bound, "outside_modes"):
                setattr(hook, name, _outside_modes(bound))


def _outside_modes(bring: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(bring)
    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return bring(*args, **kwargs)

    call.outside_modes = True  # type: ignore[attr-defined]
    return call


def device_named(name: str) -> torch.device:
    """The device of this name; `auto` is the accelerator where there is one.

    Raises:
        TargetError: the device cannot be used here.
    """
    if name != "auto":
        try:
            return torch.empty(0, device=name).device
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            raise TargetError(f"device `{name}` cannot be used: {first_line(error)}") from error
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def device_map_arguments(strategy: str) -> dict[str, Any]:
    """Keyword arguments of `from_pretrained` for a device map: a strategy's name, or a JSON file
    {module: device or "disk"}.

    Raises:
        TargetError: the file cannot be read or holds something else.
    """
    chosen: str | dict[str, Any] = strategy
    if strategy.endswith(".json"):
        try:
            chosen = json.loads(Path(strategy).read_text(encoding="utf-8"))
        except OSError as error:
            raise TargetError(f"--device-map {strategy}: {error.strerror}") from error
        except ValueError as error:
            raise TargetError(f"--device-map {strategy}: not JSON: {first_line(error)}") from error
        if not isinstance(chosen, Mapping) or not chosen:
            raise TargetError(f"--device-map {strategy}: expected an object of modules and devices")
    elif strategy not in STRATEGIES:
        names = ", ".join(f"`{name}`" for name in STRATEGIES)
        raise TargetError(f"--device-map {strategy}: expected {names} or a .json file")
    return {"device_map": chosen, "offload_folder": tempfile.mkdtemp(prefix="attncheck-offload-")}


def drop_with(model: nn.Module, folder: str) -> None:
    """Delete the folder of the weights on disk when the model goes."""
    weakref.finalize(model, shutil.rmtree, folder, ignore_errors=True)
