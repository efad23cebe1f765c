"""logits-to-keep is injected, caught by generate and named."""

from __future__ import annotations

from injecting import assert_found


def test_it_is_caught_and_named() -> None:
    assert_found("logits-to-keep", "builtin:gqa", "generate")
