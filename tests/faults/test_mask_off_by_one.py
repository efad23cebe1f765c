"""mask-off-by-one is injected, caught by future-token and named."""

from __future__ import annotations

from injecting import assert_found, assert_predicted


def test_it_is_caught_named_and_located() -> None:
    assert_found("mask-off-by-one", "builtin:gqa", "future-token", "model.layers.0.self_attn")


def test_its_hypothesis_is_exact_and_no_other_fits() -> None:
    assert_predicted("mask-off-by-one")
