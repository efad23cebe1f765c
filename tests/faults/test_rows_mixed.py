"""rows-mixed is injected, caught by batch-rows and named."""

from __future__ import annotations

from injecting import assert_found


def test_it_is_caught_named_and_located() -> None:
    assert_found("rows-mixed", "builtin:gqa", "batch-rows", "model.layers.0")
