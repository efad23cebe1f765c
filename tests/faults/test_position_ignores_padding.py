"""position-ignores-padding is injected, caught by padding and named."""

from __future__ import annotations

from injecting import assert_found, assert_refused


def test_it_is_caught_and_named() -> None:
    assert_found(
        "position-ignores-padding",
        "config:gpt2",
        "padding",
        "transformer.wpe",
        named="position-ids-ignored",
    )


def test_a_model_without_a_place_for_it_is_refused() -> None:
    assert_refused(
        "position-ignores-padding", "builtin:gqa", "moving every position changes nothing here"
    )
