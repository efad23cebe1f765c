"""static-reorder is injected, caught by cache-kinds (and in beam search) and named."""

from __future__ import annotations

from injecting import assert_found_by_one


def test_it_is_caught_by_one_probe_and_named() -> None:
    assert_found_by_one("static-reorder", "builtin:gqa", "cache-kinds", also="generate")
