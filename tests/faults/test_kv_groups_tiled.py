"""kv-groups-tiled is injected, caught by kv-groups and named."""

from __future__ import annotations

from injecting import assert_found, assert_predicted, assert_refused


def test_it_is_caught_named_and_located() -> None:
    assert_found("kv-groups-tiled", "builtin:gqa", "kv-groups", "model.layers.0.self_attn")


def test_the_keys_of_the_next_head_are_named_where_each_head_has_its_own() -> None:
    assert_found("kv-groups-tiled", "builtin:mha", "kv-groups", "transformer.h.0.attn")


def test_its_hypothesis_is_exact_and_no_other_fits() -> None:
    assert_predicted("kv-groups-tiled")


def test_a_model_without_a_place_for_it_is_refused() -> None:
    assert_refused("kv-groups-tiled", "config:falcon", "all query heads share one KV head")
