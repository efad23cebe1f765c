"""A fault of one way of calling is asked for, named by the probe of that call, and placed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import tiny_llama
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaAttention

from attncheck.compare.sides import TwoSides, compare_subjects
from attncheck.model.subject import Subject

Change = Callable[..., dict[str, Any]]


def with_attention(change: Change) -> Any:
    """A model whose attention of layer 1 changes what it is called with."""

    class Changed(LlamaAttention):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return super().forward(*args, **{**kwargs, **change(**kwargs)})

    model = tiny_llama()
    model.model.layers[1].self_attn.__class__ = Changed
    return model


def unrotated_in_steps(
    hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor], **_: Any
) -> dict[str, Any]:
    cos, sin = position_embeddings
    step = hidden_states.shape[1] == 1
    return {"position_embeddings": (torch.ones_like(cos), torch.zeros_like(sin))} if step else {}


def weaker_in_bfloat16(position_embeddings: tuple[Tensor, Tensor], **_: Any) -> dict[str, Any]:
    cos, sin = position_embeddings
    half = cos.dtype == torch.bfloat16
    return {"position_embeddings": (cos * 0.5, sin)} if half else {}


def compared(change: Change) -> TwoSides:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        one, other = tiny_llama(), with_attention(change)
        other.load_state_dict(one.state_dict())
        for each in (one, other):
            each.set_attn_implementation("eager")
        return compare_subjects(Subject.of(one, "one"), Subject.of(other, "other"))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (unrotated_in_steps, "position-offset"),
        (weaker_in_bfloat16, "only-in-bfloat16"),
    ],
)
def test_a_fault_of_one_way_of_calling_is_named_and_placed(change: Change, name: str) -> None:
    found = compared(change)
    assert found.verdict == "different"
    assert found.explanation is not None
    assert [(each.name, each.layer) for each in found.explanation.faults] == [(name, 1)]
