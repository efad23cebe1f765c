"""crop-of-nothing is injected, caught by generate alone and named."""

from __future__ import annotations

from injecting import assert_found_by_one


def test_it_is_caught_by_one_probe_and_named() -> None:
    assert_found_by_one("crop-of-nothing", "builtin:gqa", "generate", "DynamicCache.crop")
