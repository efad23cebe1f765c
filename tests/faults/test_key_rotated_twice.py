"""key-rotated-twice is injected, caught by decode-paths and named."""

from __future__ import annotations

from injecting import assert_found, assert_predicted


def test_it_is_caught_named_and_located() -> None:
    assert_found("key-rotated-twice", "builtin:gqa", "decode-paths", "model.layers.0.self_attn")


def test_its_hypothesis_is_exact_and_no_other_fits() -> None:
    assert_predicted("key-rotated-twice")
