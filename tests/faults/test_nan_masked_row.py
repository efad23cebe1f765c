"""nan-masked-row is injected, caught by padding and named."""

from __future__ import annotations

from injecting import assert_found


def test_it_is_caught_named_and_located() -> None:
    assert_found("nan-masked-row", "builtin:gqa", "padding", "model.layers.0.self_attn")
