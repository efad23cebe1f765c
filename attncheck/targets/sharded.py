"""Load a model in several processes, each with its part, by the library's tensor parallel plan."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from attncheck.core.errors import TargetError, Unsupported
from attncheck.core.settings import Settings
from attncheck.distributed import ranks
from attncheck.model.precision import COMFORT, free_memory
from attncheck.targets.adapters import adapted_layers
from attncheck.targets.target import Target


def wanted(settings: Settings) -> bool:
    """Whether the model is to be sharded."""
    return settings.tp is not None and settings.tp > 1


@contextlib.contextmanager
def together(target: Target, settings: Settings) -> Iterator[None]:
    """Load in all processes.

    Raises:
        TargetError: a device map is requested too.
        UsageError: this process was not started as one of so many.
    """
    if settings.device_map:
        raise TargetError(
            f"{target.text}: --tp and --device-map are two ways of spreading one model: choose one"
        )
    ranks.join(settings.tp or 1)
    with ranks.inside(f"loading {target.text}"):
        yield


@contextlib.contextmanager
def saved(model: Any) -> Iterator[str]:
    """A model that was made in memory as a folder to load it from: sharding happens while weights
    are read.

    Raises:
        TargetError: a folder cannot hold what the model does.
    """
    if "forward" in vars(model) or adapted_layers(model) or not hasattr(model, "save_pretrained"):
        raise TargetError(
            f"{type(model).__name__}: a model that was changed in memory cannot be sharded while "
            "it is loaded"
        )
    own = tempfile.mkdtemp(prefix="attncheck-sharded-")
    try:
        folder = ranks.agreed("a folder", own)
        model.save_pretrained(folder)  # rank 0 writes it
        ranks.gathered("written", None)
        yield folder
        ranks.gathered("read", None)
    finally:
        shutil.rmtree(own, ignore_errors=True)


_whole: weakref.WeakKeyDictionary[Any, Callable[[], Any]] = weakref.WeakKeyDictionary()


def remember_whole(model: Any, loader: Callable[[], Any]) -> None:
    """Remember how to load the whole of a sharded model; only the first process ever does."""
    if ranks.first():
        _whole[model] = loader


def whole_of(model: nn.Module, device: torch.device) -> nn.Module:
    """The unsharded model, on a device, once.

    Raises:
        Unsupported: it is not known where it came from.
    """
    loader = _whole.pop(model, None)
    if loader is None:
        raise Unsupported("the whole model cannot be had a second time")
    found: nn.Module = loader().to(device)
    return found


def why_not_whole(
    model: nn.Module, devices: Sequence[torch.device]
) -> tuple[torch.device | None, str]:
    """The first of these devices with room for the whole model beside the parts, or why none."""
    needed = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    able = [device for device in devices if needed <= COMFORT * free_memory(device)]
    return (
        (able[0], "")
        if able
        else (None, f"the whole model ({needed / 2**30:.1f} GiB) does not fit beside the parts")
    )
