"""rope-scale-switch is injected, caught by repeatability and named."""

from __future__ import annotations

from injecting import assert_found


def test_it_is_caught_named_and_located() -> None:
    assert_found("rope-scale-switch", "builtin:gqa", "repeatability", "model.layers.0.self_attn")
