"""The first diverging module, whatever it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from faulty_models.models import at_layer, hooked, next_key
from probing import loaded
from torch import Tensor

from attncheck.attention.call import AttentionCall
from attncheck.attention.masks import allowed_BHTS, with_allowed
from attncheck.core import registry
from attncheck.core.finding import Location
from attncheck.diagnosis.diagnose import diagnose
from attncheck.diagnosis.locate import attention_home, in_attention, source_of
from attncheck.faults import registry as faults
from attncheck.run.runner import finding_of


def ahead(hidden_BTW: Tensor) -> Tensor:
    return hidden_BTW + 0.1 * hidden_BTW.roll(-1, 1)


def louder_in_steps(hidden_BTW: Tensor) -> Tensor:
    """Right for the whole row, wrong for the few tokens of a call on a cache."""
    return hidden_BTW if hidden_BTW.shape[1] > 20 else 1.5 * hidden_BTW


def rows_mixed(hidden_BTW: Tensor) -> Tensor:
    return hidden_BTW + 0.1 * hidden_BTW.roll(1, 0)


def place(target: str, inject: object, probe: str = "future-token") -> Location:
    subject = loaded(target)
    with inject(subject):  # type: ignore[operator]
        found = diagnose(subject, finding_of(subject, registry.load(probe)))
    assert found.location is not None
    return found.location


@pytest.mark.parametrize(
    "path", ["model.layers.1.mlp", "model.layers.3.input_layernorm", "model.layers.2.mlp.down_proj"]
)
def test_a_leak_outside_attention_is_where_it_was_planted(path: str) -> None:
    found = place("builtin:gqa", hooked(path, ahead))
    assert found.module == path
    assert found.layer == int(path.split(".")[2])
    assert found.note == "outside attention"
    assert found.source_position == 23
    assert found.query_position == 22


@pytest.mark.parametrize("layer", [0, 1, 3])
def test_a_fault_of_one_layer_is_in_that_layer(layer: int) -> None:
    found = place("builtin:gqa", at_layer(layer, next_key))
    assert (found.module, found.layer, found.note) == (f"model.layers.{layer}.self_attn", layer, "")
    assert (found.query_position, found.source_position) == (0, 1)


def test_the_source_is_that_of_the_forward_itself_inside_its_decorators() -> None:
    model = loaded("builtin:gqa").model
    path, _, line = source_of(model, "model.layers.0.self_attn").rpartition(":")
    assert path.endswith("transformers/models/llama/modeling_llama.py")
    assert "def forward(" in "".join(Path(path).read_text().splitlines()[int(line) - 1 :][:3])
    assert source_of(model, "model.nowhere") == ""


MUTANTS = [
    ("builtin:gqa", "model.embed_tokens", ahead, "future-token", "model.embed_tokens"),
    ("builtin:gqa", "model.norm", ahead, "future-token", "model.norm"),
    ("builtin:gqa", "lm_head", ahead, "future-token", "lm_head"),
    (
        "builtin:gqa",
        "model.layers.1.self_attn.v_proj",
        ahead,
        "future-token",
        "model.layers.1.self_attn",
    ),
    ("builtin:moe", "model.layers.1.mlp", ahead, "future-token", "model.layers.1.mlp"),
    ("config:mamba2", "backbone.layers.1.mixer", ahead, "future-token", "backbone.layers.1.mixer"),
    ("builtin:gqa", "model.layers.2.mlp", louder_in_steps, "decode-paths", "model.layers.2.mlp"),
    ("builtin:gqa", "lm_head", louder_in_steps, "decode-paths", "lm_head"),
    (
        "config:mamba2",
        "backbone.layers.3.mixer",
        louder_in_steps,
        "decode-paths",
        "backbone.layers.3.mixer",
    ),
    ("builtin:mha", "transformer.h.1.mlp", rows_mixed, "batch-rows", "transformer.h.1.mlp"),
]


@pytest.mark.parametrize(
    ("target", "path", "change", "probe", "module"),
    MUTANTS,
    ids=[f"{each[0]}-{each[1]}" for each in MUTANTS],
)
def test_a_mutant_is_found_where_it_sits(
    target: str, path: str, change: object, probe: str, module: str
) -> None:
    found = place(target, hooked(path, change), probe)  # type: ignore[arg-type]
    numbers = [int(part) for part in module.split(".") if part.isdigit()]
    assert found.module == module
    assert found.layer == (numbers[0] if numbers else None)
    if probe == "future-token":
        assert (found.query_position, found.source_position) == (22, 23)


def square_in_one_head(call: AttentionCall) -> AttentionCall:
    allowed = allowed_BHTS(call)
    if allowed.shape[2] == allowed.shape[3]:
        return call
    each_head = allowed.expand(-1, call.query_BHTD.shape[1], -1, -1).clone()
    each_head[:, 2] = torch.ones_like(each_head[:, 2]).tril()
    return with_allowed(call, each_head)


def test_a_fault_of_one_head_is_in_its_layer() -> None:
    found = place("builtin:gqa", at_layer(1, square_in_one_head), "decode-paths")
    assert (found.module, found.layer) == ("model.layers.1.self_attn", 1)


def test_the_key_that_is_read_is_told_where_the_window_is_lost() -> None:
    subject = loaded("builtin:window")
    with (
        faults.fault("window-ignored").injected(subject),
    ):
        found = diagnose(subject, finding_of(subject, registry.load("decode-paths"))).location
    assert found is not None
    assert (found.module, found.query_position, found.source_position) == (
        "model.layers.0.self_attn",
        8,
        0,
    )


def test_modules_that_compute_attention_are_attention_whatever_they_are_called() -> None:
    homes = {"blocks.1.sa"}
    assert in_attention("blocks.1.sa.key", homes)
    assert not in_attention("blocks.1.sax", homes)
    assert attention_home("blocks.1.sa.key", homes) == "blocks.1.sa"
    assert attention_home("blocks.1.ffwd", homes) == "blocks.1.ffwd"


def test_the_source_of_a_module_of_torch_is_the_forward_that_calls_it() -> None:
    model = loaded("builtin:gqa").model
    around = source_of(model, "model.layers.0.self_attn")
    assert "modeling_llama.py:" in around
    assert source_of(model, "model.layers.0.self_attn.q_proj") == around
    assert source_of(model, "model.layers.0") != source_of(model, "model.embed_tokens")
    assert source_of(model, "model.embed_tokens") == source_of(model, "model")
