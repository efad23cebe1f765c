"""Record a fingerprint of what enters and leaves each module: a few numbers per position.

A fingerprint is a random projection to `KEPT` numbers. It is linear, so the fingerprints of the
parts of a sharded output add up as the parts do.

Axes: B batch, T positions, W hidden width, K numbers kept for each position.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn

from attncheck.numerics.hooks import hooked
from attncheck.numerics.reorder import Reorder

KEPT = 4
SEED = 0
SHARE = 0.5
Event = tuple[str, str]
"""(module, "in" or "out")."""


@final
@dataclass(frozen=True)
class ModuleOutput:
    """The fingerprint of one event over a whole forward.

    `floor` is how far rounding alone moves it. `width` is how many values a position had: fewer
    where the output is a part of a sharded one.
    """

    print_BTK: Tensor
    floor: float = 0.0
    width: int = 0


ModuleOutputs = Mapping[Event, ModuleOutput]
"""The events of one forward in the order of execution."""


@final
@dataclass
class Recorder:
    """The fingerprints of one forward by event; chunks of a forward follow each other along T."""

    prints: dict[Event, list[Tensor]] = field(default_factory=dict)
    widths: dict[Event, int] = field(default_factory=dict)
    _matrices: dict[tuple[int, torch.device], Tensor] = field(default_factory=dict)

    def note(self, event: Event, value: Any) -> None:
        """Keep the fingerprint of a hidden tensor (B, T, …)."""
        tensor = first_tensor(value)
        if tensor is not None:
            self.prints.setdefault(event, []).append(self._fingerprint(tensor.detach()))
            self.widths[event] = tensor.numel() // max(1, tensor.shape[0] * tensor.shape[1])

    def outputs(
        self, shape: tuple[int, int], calls: int | None = None
    ) -> dict[Event, ModuleOutput]:
        """The events that have one vector per token; with `calls`, only those called so often."""
        found = {
            event: self.print_BTK(event, shape)
            for event, parts in self.prints.items()
            if calls is None or len(parts) == calls
        }
        return {
            event: ModuleOutput(each, width=self.widths[event])
            for event, each in found.items()
            if each is not None
        }

    def print_BTK(self, event: Event, shape: tuple[int, int]) -> Tensor | None:
        """The fingerprint of an event over the forward; None where tokens have no vector each."""
        parts = self.prints[event]
        if all(part.shape[0] == 1 for part in parts):  # one sequence for the whole batch
            parts = [part.expand(shape[0], *part.shape[1:]) for part in parts]
        if any(part.shape[0] != shape[0] for part in parts):
            return None
        if len(parts) == 1 and parts[0].shape[1] > shape[1] and parts[0].shape[1] % shape[1] == 0:
            # several streams of the sequence, one after the other along T
            streams = parts[0].reshape(shape[0], -1, shape[1], parts[0].shape[-1])
            return streams.transpose(1, 2).reshape(shape[0], shape[1], -1)
        return last_calls(parts, shape[1])

    def _fingerprint(self, tensor: Tensor) -> Tensor:
        flat_BTW = tensor.reshape(*tensor.shape[:2], -1)
        # a projection in bfloat16 would lose the differences that it is to show
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


def last_calls(parts: list[Tensor], length: int) -> Tensor | None:
    """The last parts (B, T, …) that make up `length` positions, joined along T: what ran before
    them was another call. None where none do.
    """
    kept: list[Tensor] = []
    for part in reversed(parts):
        kept.insert(0, part)
        length -= part.shape[1]
        if length <= 0:
            break
    return torch.cat(kept, 1) if kept and not length else None


def first_tensor(value: Any) -> Tensor | None:
    """The hidden states among arguments or results: the first float tensor (B, T, W…)."""
    for each in value if isinstance(value, (tuple, list)) else (value,):
        if isinstance(each, Tensor) and each.is_floating_point() and each.ndim >= 3:
            return each
    return None


def of_tokens(module: nn.Module, output: Any) -> Any:
    """A module's output; that of a table which was asked for bare positions as (1, T, W)."""
    bare = isinstance(module, nn.Embedding) and isinstance(output, Tensor) and output.ndim == 2
    return output[None] if bare else output


@contextlib.contextmanager
def recording(modules: Mapping[str, nn.Module]) -> Iterator[Recorder]:
    """While active, every call of these modules leaves its fingerprints in the recorder."""
    recorder = Recorder()

    def before(name: str) -> Any:
        def hook(module: nn.Module, args: Any, named: Any) -> None:
            recorder.note((name, "in"), args or [named[key] for key in named if "hidden" in key])

        return hook

    def after(name: str) -> Any:
        return lambda module, args, out: recorder.note((name, "out"), of_tokens(module, out))

    handles = [
        module.register_forward_pre_hook(before(name), with_kwargs=True)
        for name, module in modules.items()
    ]
    handles += [module.register_forward_hook(after(name)) for name, module in modules.items()]
    with hooked(handles):
        yield recorder


def outputs_with_floors(
    modules: Mapping[str, nn.Module],
    run: Callable[[], object],
    shape: tuple[int, int],
    *,
    real_BT: Tensor | None = None,
    calls: int | None = None,
) -> dict[Event, ModuleOutput]:
    """Run twice, the second time with other rounding: fingerprints and how far rounding moves them.

    The floors are taken at the positions of `real_BT`. Events that the second run lacks are left
    out.
    """
    with recording(modules) as usual:
        run()
    with recording(modules) as reordered, Reorder(SHARE):
        run()
    moved = reordered.outputs(shape, calls)
    return {
        event: ModuleOutput(
            each.print_BTK, _floor(each.print_BTK, moved[event].print_BTK, real_BT), each.width
        )
        for event, each in usual.outputs(shape, calls).items()
        if event in moved
    }


def _floor(print_BTK: Tensor, moved_BTK: Tensor, real_BT: Tensor | None) -> float:
    delta = (print_BTK - moved_BTK).abs()
    kept = delta if real_BT is None else delta[real_BT]
    return float(kept.nan_to_num(0.0).max()) if kept.numel() else 0.0
