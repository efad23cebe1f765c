"""right-padding-visible is injected, caught by padding, named, and seen in generate()'s hole."""

from __future__ import annotations

from injecting import assert_found_by_one


def test_it_is_caught_by_padding_and_named() -> None:
    assert_found_by_one("right-padding-visible", "builtin:gqa", "padding", also="generate")
