"""What modules keep between calls beside weights: counters, tables, flags, memories. Compared with
what they held when the model was loaded, and put back.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn

from attncheck.model.kept_state import model_untouched

PLAIN = (bool, int, float, str, list, tuple, dict, set, type(None))
MOST = 1 << 16
"""Larger tensors are tables for every length, not what a call leaves behind."""
INTERNAL = frozenset({*vars(nn.Module()), "training"})
Key = tuple[str, str]


@final
@dataclass(frozen=True)
class ModuleMemory:
    """The plain attributes and small buffers of every module, by the names of both."""

    model: nn.Module
    values: dict[Key, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, model: nn.Module) -> ModuleMemory:
        """What the modules hold now."""
        return cls(model, {key: _copied(value) for key, value in _held(model)})

    def changed(self) -> list[Key]:
        """What has another value now, is new or has gone."""
        now = dict(_held(self.model))
        keys = [*self.values, *(key for key in now if key not in self.values)]
        missing = object()
        return [
            key for key in keys if not _same(now.get(key, missing), self.values.get(key, missing))
        ]

    @contextlib.contextmanager
    def put_back(self, keys: list[Key]) -> Iterator[None]:
        """While active, these have the values of then. Afterwards the model is as it was, without
        the hooks that the library installs where its flag of then says that it has not yet.
        """
        with model_untouched(self.model):
            for key in keys:
                self._set(key, self.values)
            yield

    def _set(self, key: Key, values: dict[Key, Any]) -> None:
        module = self.model.get_submodule(key[0])
        home = module._buffers if key[1] in module._buffers else vars(module)
        if key in values:
            home[key[1]] = _copied(values[key])
        else:
            home.pop(key[1], None)


def _held(model: nn.Module) -> Iterator[tuple[Key, Any]]:
    for name, module in model.named_modules():
        for attribute, value in (*vars(module).items(), *module._buffers.items()):
            small = isinstance(value, Tensor) and value.numel() <= MOST
            if attribute not in INTERNAL and (small or type(value) in PLAIN):
                yield (name, attribute), value


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else copy.copy(value)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        both = isinstance(one, Tensor) and isinstance(other, Tensor)
        return both and one.shape == other.shape and bool(torch.equal(one.to(other), other))
    try:
        return type(one) is type(other) and bool(one == other)
    except (RuntimeError, ValueError):  # tensors inside compare element by element
        return False
