"""softcap-missing is injected, caught by reference and named."""

from __future__ import annotations

from injecting import assert_found, assert_refused


def test_it_is_caught_named_and_located() -> None:
    assert_found("softcap-missing", "config:gemma2", "reference", "model.layers.0.self_attn")


def test_a_model_without_a_place_for_it_is_refused() -> None:
    assert_refused("softcap-missing", "builtin:gqa", "no layer passes its kernel a soft-cap")
