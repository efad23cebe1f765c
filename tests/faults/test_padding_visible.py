"""padding-visible is injected, caught by padding and named."""

from __future__ import annotations

from injecting import assert_found


def test_it_is_caught_named_and_located() -> None:
    assert_found("padding-visible", "builtin:gqa", "padding", "model.layers.0.self_attn")
