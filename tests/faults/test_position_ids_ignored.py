"""position-ids-ignored is injected, caught by position-reset and named."""

from __future__ import annotations

from injecting import assert_found


def test_it_is_caught_and_named() -> None:
    assert_found("position-ids-ignored", "builtin:gqa", "position-reset")
