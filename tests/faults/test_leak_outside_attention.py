"""leak-outside-attention is injected, caught by future-token and named."""

from __future__ import annotations

from injecting import assert_found


def test_it_is_caught_named_and_located() -> None:
    assert_found("leak-outside-attention", "builtin:gqa", "future-token", "model.layers.0")
