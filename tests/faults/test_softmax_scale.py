"""softmax-scale is injected, caught by implementations and named."""

from __future__ import annotations

from injecting import assert_found


def test_it_is_caught_named_and_located() -> None:
    assert_found("softmax-scale", "builtin:gqa", "implementations", "model.layers.0.self_attn")
