"""kv-stored-repeated is injected, caught by kv-repeat and named."""

from __future__ import annotations

from injecting import assert_found


def test_it_is_caught_and_named() -> None:
    assert_found("kv-stored-repeated", "builtin:gqa", "kv-repeat")
