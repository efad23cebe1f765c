"""gradient-detached is injected, caught by gradient and named."""

from __future__ import annotations

from injecting import assert_found


def test_it_is_caught_and_named() -> None:
    assert_found("gradient-detached", "builtin:gqa", "gradient", "model.layers.3.self_attn.k_proj")
