"""Fingerprints of what goes into and comes out of every module during a pass: a few numbers a
position, not the tensors.

Axes: B batch, T positions, W hidden width, K numbers kept for each position.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn

from attncheck.numerics.hooks import hooked

KEPT = 4
SEED = 0
Event = tuple[str, str]
"""(module, "in" or "out")."""


@final
@dataclass
class Trace:
    """The fingerprints of one pass by event, in the order of execution; chunks of one pass follow
    each other along T.
    """

    prints: dict[Event, list[Tensor]] = field(default_factory=dict)
    widths: dict[Event, int] = field(default_factory=dict)
    _matrices: dict[tuple[int, torch.device], Tensor] = field(default_factory=dict)

    def note(self, event: Event, value: Any) -> None:
        """Keep the fingerprint of a hidden tensor (B, T, …)."""
        tensor = first_tensor(value)
        if tensor is not None:
            self.prints.setdefault(event, []).append(self._fingerprint(tensor.detach()))
            self.widths[event] = tensor.numel() // max(1, tensor.shape[0] * tensor.shape[1])

    def print_BTK(self, event: Event, shape: tuple[int, int]) -> Tensor | None:
        """The fingerprint of an event over the whole pass, or None where it does not have one
        number row a token.
        """
        parts = self.prints.get(event)
        if parts is None or any(part.shape[0] != shape[0] for part in parts):
            return None
        if len(parts) == 1 and parts[0].shape[1] > shape[1] and parts[0].shape[1] % shape[1] == 0:
            # several streams of the row, one after the other along T
            streams = parts[0].reshape(shape[0], -1, shape[1], parts[0].shape[-1])
            return streams.transpose(1, 2).reshape(shape[0], shape[1], -1)
        whole = torch.cat(_last(parts, shape[1]), 1)
        return whole if whole.shape[1] == shape[1] else None

    def _fingerprint(self, tensor: Tensor) -> Tensor:
        flat_BTW = tensor.reshape(*tensor.shape[:2], -1)
        wide = flat_BTW.double() if flat_BTW.dtype == torch.float64 else flat_BTW.float()
        return (wide @ self._matrix(flat_BTW.shape[-1], tensor.device).to(wide.dtype)).cpu()

    def _matrix(self, width: int, device: torch.device) -> Tensor:
        key = (width, device)
        if key not in self._matrices:
            drawn = torch.randn(
                width, KEPT, generator=torch.Generator().manual_seed(SEED), dtype=torch.float64
            )
            self._matrices[key] = (drawn / math.sqrt(width)).to(device)
        return self._matrices[key]


def _last(parts: list[Tensor], length: int) -> list[Tensor]:
    """The last parts that make up `length` positions: what ran before them was another call."""
    kept: list[Tensor] = []
    while len(kept) < len(parts) and sum(part.shape[1] for part in kept) < length:
        kept.insert(0, parts[-1 - len(kept)])
    return kept


def first_tensor(value: Any) -> Tensor | None:
    """The hidden states in what a module was given or gave: the first floating tensor of at least
    (B, T, W).
    """
    for each in value if isinstance(value, (tuple, list)) else (value,):
        if isinstance(each, Tensor) and each.is_floating_point() and each.ndim >= 3:
            return each
    return None


@contextlib.contextmanager
def tracing(modules: dict[str, nn.Module]) -> Iterator[Trace]:
    """While active, every call of these modules leaves its fingerprints in the trace."""
    trace = Trace()

    def before(name: str) -> Any:
        def hook(module: nn.Module, args: Any, named: Any) -> None:
            trace.note((name, "in"), args or [named[key] for key in named if "hidden" in key])

        return hook

    def after(name: str) -> Any:
        return lambda module, args, output: trace.note((name, "out"), output)

    handles = [
        module.register_forward_pre_hook(before(name), with_kwargs=True)
        for name, module in modules.items()
    ]
    handles += [module.register_forward_hook(after(name)) for name, module in modules.items()]
    with hooked(handles):
        yield trace
