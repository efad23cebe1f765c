"""Where items meet others on their way into the decoder.

Axes: N vectors of all items, M vectors of some of them, W width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attncheck.media.rows import MediaRow, MediaRows
from attncheck.model.forward_spec import ForwardSpec
from attncheck.numerics.divergence import beyond
from attncheck.numerics.hooks import hooked


def mixing_module(rows: MediaRows, row: MediaRow, together: ForwardSpec) -> str:
    """The first module in front of the decoder that gives the items of a row other vectors in a
    forward with more items than alone; "" where none does.
    """
    own, shared = (_first_outputs(rows, spec) for spec in (rows.spec(row), together))
    tokens, modules = len(row.ids), dict(rows.subject.model.named_modules())
    for name, own_MW in own.items():
        module, shared_NW = modules[name], shared.get(name)
        of_tokens = len(own_MW) == tokens
        if of_tokens and not isinstance(module, nn.Embedding):
            break  # the decoder
        if of_tokens or shared_NW is None or len(shared_NW) <= len(own_MW):
            continue
        if own_MW.shape[1:] == shared_NW.shape[1:] and not _holds(shared_NW, own_MW, rows):
            return name if list(module.children()) else name.rpartition(".")[0]
    return ""


def _holds(shared_NW: Tensor, own_MW: Tensor, rows: MediaRows) -> bool:
    """Whether some stretch of the vectors of all items is the vectors of these."""
    size, budget = len(own_MW), rows.budget.value
    starts = range(len(shared_NW) - size, -1, -1)
    return any(not beyond(shared_NW[at : at + size], own_MW, budget) for at in starts)


def _first_outputs(rows: MediaRows, spec: ForwardSpec) -> dict[str, Tensor]:
    """What each module returns in its first call, in the order of the calls: a vector a token."""
    found: dict[str, Tensor] = {}

    def after(name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            value = output[0] if isinstance(output, tuple) and output else output
            if name not in found and isinstance(value, Tensor) and value.ndim > 1:
                found[name] = value.detach().reshape(-1, value.shape[-1])

        return hook

    modules = dict(rows.subject.model.named_modules())
    handles = [module.register_forward_hook(after(name)) for name, module in modules.items()]
    with hooked(handles), torch.no_grad():
        rows.subject.passes.replay(spec)
    return found
