"""window-ignored is injected, caught by window and named."""

from __future__ import annotations

from injecting import assert_found, assert_refused


def test_it_is_caught_named_and_located() -> None:
    assert_found("window-ignored", "builtin:window", "window", "model.layers.0.self_attn")


def test_a_model_without_a_place_for_it_is_refused() -> None:
    assert_refused("window-ignored", "builtin:gqa", "no layer hides past keys")
