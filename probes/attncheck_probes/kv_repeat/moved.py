"""The keys and values that a cache holds, also of a model whose projections give every channel
something else.

Axes: T positions, C channels of a projection.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attncheck.probing import (
    CachedTensor,
    Subject,
    cache_of,
    hooked,
    key_value_projections,
    key_values,
)

SEED = 71


def stored_of_moved_projections(subject: Subject) -> list[CachedTensor]:
    """The keys and values of one forward in which every channel of every projection of keys and
    values is moved by a number of its own, so that no two heads can be equal by their weights.
    """
    moved = key_value_projections(subject.model)
    with hooked(each.register_forward_hook(_moved) for each in moved), torch.no_grad():
        output = subject.passes.call(subject.inputs.tokens, use_cache=True).output
    return stored_of(subject, cache_of(output))


def kept_alive(stored: list[CachedTensor]) -> float:
    """How many times its own size the storage behind a cached tensor has at most."""
    return max(each.tensor.untyped_storage().nbytes() / each.tensor.nbytes for each in stored)


def stored_of(subject: Subject, cache: Any) -> list[CachedTensor]:
    """The keys and values of one row, as (B, G, S, D); a pool of blocks for all rows is none."""
    facts = subject.facts
    heads = {each for each in (facts.heads, facts.kv_heads) if each}
    return [each for each in key_values(cache, heads) if each.tensor.shape[0] == 1]


def _moved(module: nn.Module, args: Any, output_TC: Any) -> Any:
    if not isinstance(output_TC, Tensor):
        return output_TC
    drawn_C = torch.randn(output_TC.shape[-1], generator=torch.Generator().manual_seed(SEED))
    size = output_TC.abs().max().clamp_min(1.0)
    return output_TC + size * drawn_C.to(output_TC.device, output_TC.dtype)
