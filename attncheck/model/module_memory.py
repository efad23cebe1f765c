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

PLAIN = (bool, int, float, str, list, tuple, dict, set, type(None))
MOST = 1 << 16
"""Larger tensors are tables for every length, not what a call leaves behind."""
INTERNAL = frozenset({*vars(nn.Module()), "training"})
HOOKS = tuple(name for name, held in vars(nn.Module()).items() if "hooks" in name and held == {})
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
        """While active, these have the values of then; afterwards those of now again. Hooks that
        the library installs meanwhile, since its flag says that it has not yet, are removed.
        """
        now = dict(_held(self.model))
        kept = {key: _copied(now[key]) for key in keys if key in now}
        with _hooks_as_now(self.model):
            for key in keys:
                self._set(key, self.values)
            try:
                yield
            finally:
                for key in keys:
                    self._set(key, kept)

    def _set(self, key: Key, values: dict[Key, Any]) -> None:
        module = self.model.get_submodule(key[0])
        home = module._buffers if key[1] in module._buffers else vars(module)
        if key in values:
            home[key[1]] = _copied(values[key])
        else:
            home.pop(key[1], None)


@contextlib.contextmanager
def _hooks_as_now(model: nn.Module) -> Iterator[None]:
    """Hooks that are added inside are gone afterwards."""
    tables = [getattr(module, name) for module in model.modules() for name in HOOKS]
    kept = [dict(table) for table in tables]
    try:
        yield
    finally:
        for table, before in zip(tables, kept, strict=True):
            table.clear()
            table.update(before)


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
