"""position-reset: positions that are handed in and lost on the way are a fault; having no use for
them is none.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from conftest import tiny_llama
from probing import case, finding, loaded
from torch import nn

from attncheck.core.measurement import verdict_of
from attncheck.core.verdict import Verdict
from attncheck.model.subject import Subject
from attncheck.targets.amplify import amplify

NAME = "other positions must differ"


def counting_rotary() -> nn.Module:
    """The rotary module is handed 0, 1, 2, … whatever the caller says."""
    model = tiny_llama()

    def own(module: Any, args: Any, call: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, {**call, "position_ids": torch.arange(args[0].shape[1])[None]}

    model.model.rotary_emb.register_forward_pre_hook(own, with_kwargs=True)
    return model


def counting_table() -> nn.Module:
    """The table of learned positions is asked for 0, 1, 2, … whatever the caller says."""
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    )
    amplify(model, 0)

    def own(module: Any, args: Any) -> tuple[Any]:
        return (torch.arange(args[0].shape[-1])[None],)

    model.transformer.wpe.register_forward_pre_hook(own)
    return model


def counting_layers() -> nn.Module:
    """The rotary module obeys; every layer turns by angles of its own all the same."""
    model = tiny_llama()

    def own(module: Any, args: Any, call: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        hidden = args[0]
        angles = model.model.rotary_emb.forward(hidden, torch.arange(hidden.shape[1])[None])
        return args, {**call, "position_embeddings": angles}

    for layer in model.model.layers:
        layer.register_forward_pre_hook(own, with_kwargs=True)
    return model


@pytest.mark.parametrize(
    ("made", "module", "says"),
    [
        (counting_rotary, "model.rotary_emb", "gets positions that the model counts by itself"),
        (counting_table, "transformer.wpe", "gets positions that the model counts by itself"),
        (
            counting_layers,
            "model.layers.0.self_attn",
            "queries of equal tokens rotate with the position",
        ),
    ],
)
def test_a_model_that_counts_by_itself_loses_the_positions_that_it_takes(
    made: Any, module: str, says: str
) -> None:
    found = finding(Subject.of(made().double(), "counts", dtype="float64"), "position-reset")
    broken = case(found, NAME)
    assert found.verdict is verdict_of(broken) is Verdict.FAIL
    assert (broken.cause.fault, broken.cause.module, broken.max_abs) == (
        "position-ids-ignored",
        module,
        0.0,
    )
    assert says in broken.note


def falcon_with_biases() -> nn.Module:
    """Positions are an argument that only the rotary form of this model needs."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = transformers.FalconForCausalLM(transformers.FalconConfig(**sizes, alibi=True))
    amplify(model, 0)
    return model


@pytest.mark.parametrize(
    "target", ["config:jamba", "config:granitemoehybrid", "config:zamba2", "falcon"]
)
def test_models_that_have_no_use_for_positions_are_skipped(target: str) -> None:
    made = (
        Subject.of(falcon_with_biases().double(), target, dtype="float64")
        if target == "falcon"
        else loaded(target)
    )
    found = finding(made, "position-reset")
    assert (found.verdict, found.skip_reason) == (
        Verdict.SKIP,
        "`position_ids` are accepted but change nothing",
    )
