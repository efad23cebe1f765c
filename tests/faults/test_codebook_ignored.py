"""codebook-ignored is injected, caught by future-token and named."""

from __future__ import annotations

from injecting import assert_refused
from media_models import assert_named, codebooks


def test_it_is_caught_and_named() -> None:
    assert_named("codebook-ignored", codebooks(), "future-token")


def test_a_model_of_text_has_no_place_for_it() -> None:
    assert_refused("codebook-ignored", "builtin:gqa", "reads no codebooks")
