"""generate-positions is injected, caught by generate and named."""

from __future__ import annotations

from injecting import assert_found


def test_it_is_caught_named_and_located() -> None:
    assert_found(
        "generate-positions",
        "builtin:gqa",
        "generate",
        "model.layers.0.self_attn",
        named="position-offset",
    )
