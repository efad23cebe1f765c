"""kv-groups: the map of query heads to KV heads is read off the kernel."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from probing import case, caught_by, finding, loaded
from torch import nn

from attncheck.attention.call import AttentionCall
from attncheck.core.verdict import Verdict
from attncheck.model.subject import Subject
from attncheck_probes.kv_groups.head_maps import LayerHeads, groups_of_equal_keys


def test_the_map_of_grouped_heads_is_reported(subject: Subject) -> None:
    found = finding(subject, "kv-groups")
    assert found.verdict is Verdict.PASS
    assert (
        case(found, "decode, sdpa").note
        == "model.layers.0.self_attn: query heads 0 1 -> KV 0, 2 3 -> KV 1"
    )
    assert {each.name for each in found.cases} == {
        "prefill, sdpa",
        "decode, sdpa",
        "prefill, eager",
        "decode, eager",
    }
    assert [(control.fault, control.detected) for control in found.controls] == [
        ("kv-groups-tiled", True)
    ]


def test_every_head_with_its_own_keys_is_the_identity() -> None:
    found = finding(loaded("builtin:mha"), "kv-groups")
    assert found.verdict is Verdict.PASS
    assert case(found, "prefill, sdpa").note.endswith(
        "query heads 0 -> KV 0, 1 -> KV 1, 2 -> KV 2, 3 -> KV 3"
    )
    assert [(control.fault, control.detected) for control in found.controls] == [
        ("kv-groups-tiled", True)
    ]


def test_heads_that_read_the_keys_of_the_next_are_caught_and_named() -> None:
    broken = caught_by(loaded("builtin:mha"), "kv-groups", "kv-groups-tiled")
    assert broken is not None
    assert broken.note.endswith("query heads 0 -> KV 1, 1 -> KV 2, 2 -> KV 3, 3 -> KV 0")


def test_heads_dealt_out_in_turn_are_caught_and_named(subject: Subject) -> None:
    broken = caught_by(subject, "kv-groups", "kv-groups-tiled")
    assert broken is not None
    assert broken.cause.fault == "kv-groups-tiled"
    assert broken.cause.module == "model.layers.0.self_attn"
    assert broken.value == 4 * 2, "in four layers, two of four heads land in the other group"
    assert broken.note.endswith("query heads 0 2 -> KV 0, 1 3 -> KV 1")


def test_heads_are_told_apart_where_a_model_attends_by_itself() -> None:
    found = finding(loaded("config:mpt"), "kv-groups")
    assert found.verdict is Verdict.PASS
    assert case(found, "decode, eager").note.endswith(
        "query heads 0 -> KV 0, 1 -> KV 1, 2 -> KV 2, 3 -> KV 3"
    )
    shared = finding(loaded("config:falcon"), "kv-groups")
    assert shared.verdict is Verdict.SKIP
    assert shared.skip_reason == "all query heads share one KV head: there are none to mix up"


def test_a_model_without_attention_is_skipped() -> None:
    found = finding(loaded("config:rwkv"), "kv-groups")
    assert found.verdict is Verdict.SKIP
    assert (
        found.skip_reason
        == "RwkvForCausalLM runs no attention that can be watched: no scores pass a softmax and meet values"
    )


def test_groups_are_seen_in_keys_that_were_repeated_before_the_kernel() -> None:
    keys_BGSD = torch.randn(1, 2, 3, 4, generator=torch.Generator().manual_seed(0))
    blocks = (0, 0, 2, 2)

    def received(key_BHSD: torch.Tensor) -> AttentionCall:
        return AttentionCall(
            nn.Identity(), key_BHSD, key_BHSD, key_BHSD, None, {}, lambda *args: None
        )

    own_groups = groups_of_equal_keys(received(keys_BGSD.repeat_interleave(2, 1)))
    tiled_groups = groups_of_equal_keys(received(keys_BGSD.repeat(1, 2, 1, 1)))
    assert own_groups == (blocks, blocks)
    assert tiled_groups == ((0, 1, 0, 1), blocks)
    assert groups_of_equal_keys(received(keys_BGSD)) is None
    assert LayerHeads("layer", *tiled_groups).tiled
    assert not LayerHeads("layer", *own_groups).tiled


@pytest.mark.parametrize(
    ("layers", "verdict"), [((1,), Verdict.FAIL), ((0, 1, 2, 3), Verdict.WARN)]
)
def test_heads_that_one_layer_deals_out_in_turn_are_no_design(
    layers: tuple[int, ...], verdict: Verdict
) -> None:
    subject = loaded("builtin:gqa")
    model: Any = subject.model

    def dealt(module: nn.Module, args: Any, output_BTX: torch.Tensor) -> torch.Tensor:
        return output_BTX.unflatten(-1, (2, -1)).repeat(1, 1, 2, 1).flatten(2)

    for layer in layers:
        attention = model.model.layers[layer].self_attn
        attention.num_key_value_groups = 1
        attention.k_proj.register_forward_hook(dealt)
        attention.v_proj.register_forward_hook(dealt)
    found = finding(subject, "kv-groups")
    assert found.verdict is verdict
    assert f"layers.{layers[0]}.self_attn: query heads 0 2 -> KV 0, 1 3 -> KV 1" in found.summary
