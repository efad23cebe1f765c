"""cache-crop is injected, caught by cache-kinds and named."""

from __future__ import annotations

from injecting import assert_found


def test_it_is_caught_and_named() -> None:
    assert_found("cache-crop", "builtin:gqa", "cache-kinds", "DynamicCache.crop")
