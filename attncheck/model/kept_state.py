"""What a check leaves as it was: a model with all that hangs on it, and the process around it."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, final

import torch
from torch import Tensor, nn

from attncheck.model import compat
from attncheck.model.weights import SavedBuffers, put_back

ONE_CHECK = threading.RLock()
"""Promoted forwards set the default dtype of the whole process, so checks wait for one another."""
CONTAINERS = (dict, OrderedDict, list, set)
LIBRARIES = ("transformers", "accelerate")
"""Packages whose objects hold state of a model: configs, caches, hooks that load weights."""


@contextlib.contextmanager
def process_untouched() -> Iterator[None]:
    """One check at a time; random state, default dtype, logging and progress bars come back."""
    with ONE_CHECK:
        numbers = random.getstate(), torch.get_rng_state(), torch.get_default_dtype()
        devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        numpy: Any = sys.modules.get("numpy")
        arrays = numpy.random.get_state() if numpy else None
        loud, hub = compat.loudness(), logging.getLogger("huggingface_hub")
        level, bars = hub.level, os.environ.get("TQDM_DISABLE")
        try:
            yield
        finally:
            random.setstate(numbers[0])
            torch.set_rng_state(numbers[1])
            torch.set_default_dtype(numbers[2])
            if devices:
                torch.cuda.set_rng_state_all(devices)
            if numpy:
                numpy.random.set_state(arrays)
            compat.set_loudness(*loud)
            hub.setLevel(level)
            if bars is None:
                os.environ.pop("TQDM_DISABLE", None)


@contextlib.contextmanager
def model_untouched(model: nn.Module) -> Iterator[None]:
    """Give a model back byte for byte: weights, gradients, buffers (those that two modules share
    are still one), modes, hooks, attributes and configs.
    """
    saved = _ModelState(model)
    try:
        yield
    finally:
        saved.put_back()


@final
class _ModelState:
    """A model's tensors and attributes. A cast gives each parameter new storage, so that the old
    one is still whole; gradients are set aside, where no cast and no backward pass reaches them.
    """

    def __init__(self, model: nn.Module) -> None:
        self.parameters = [
            (each, each.data, each.requires_grad, each.grad) for each in model.parameters()
        ]
        self.buffers = SavedBuffers(model)
        self.attributes: list[tuple[Any, Any]] = []
        self.tensors: list[tuple[Tensor, Tensor]] = []
        self.homes = {type(module).__module__ for module in model.modules()} - {nn.__name__}
        self.seen = {id(each[0]) for each in self.parameters} | self.buffers.ids
        for module in model.modules():
            self._keep(module)
        for parameter, *_ in self.parameters:
            parameter.grad = None

    def _keep(self, value: Any) -> None:
        """Remember a value, and what it holds."""
        if id(value) in self.seen:
            return
        if type(value) in CONTAINERS:
            kept = value.copy()
            inside = list(kept.values() if isinstance(kept, dict) else kept)
        elif isinstance(value, Tensor):
            self.tensors.append((value, value.detach().clone()))
            return
        elif isinstance(value, nn.Module) or self._holds_state(value):
            value = vars(value)
            kept, inside = value.copy(), list(value.values())
        else:
            return
        self.seen.add(id(value))
        self.attributes.append((value, kept))
        for each in inside:
            self._keep(each)

    def _holds_state(self, value: Any) -> bool:
        home = type(value).__module__
        known = home in self.homes or home.partition(".")[0] in LIBRARIES
        return known and not isinstance(value, type) and hasattr(value, "__dict__")

    @torch.no_grad()
    def put_back(self) -> None:
        """Everything as it was."""
        for container, kept in reversed(self.attributes):
            _refill(container, kept)
        for parameter, data, wanted, grad in self.parameters:
            with torch.inference_mode(data.is_inference()):  # where alone such a tensor obeys
                parameter.data = data
                parameter.requires_grad_(wanted)
            parameter.grad = grad
        self.buffers.put_back()
        for tensor, value in self.tensors:
            put_back(tensor, value)


def _refill(container: Any, kept: Any) -> None:
    if isinstance(container, list):
        container[:] = kept
        return
    same = container.keys() == kept.keys() if isinstance(kept, dict) else container == kept
    if same and (not isinstance(kept, dict) or all(container[key] is kept[key] for key in kept)):
        return  # nothing else sees an update that changes nothing
    container.clear()
    container.update(kept)
