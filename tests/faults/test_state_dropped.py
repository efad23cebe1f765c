"""state-dropped is injected, caught by decode-paths and named."""

from __future__ import annotations

from injecting import assert_found, assert_refused


def test_it_is_caught_named_and_located() -> None:
    assert_found("state-dropped", "config:mamba2", "decode-paths", "backbone.layers.0.mixer")


def test_a_model_without_a_place_for_it_is_refused() -> None:
    assert_refused("state-dropped", "builtin:gqa", "the cache holds no recurrent state")
