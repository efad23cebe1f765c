"""pictures-swapped is injected, caught by batch-rows and named."""

from __future__ import annotations

import pytest
from injecting import assert_refused
from media_models import assert_named


@pytest.mark.parametrize("target", ["gemma3", "smolvlm"])
def test_it_is_caught_and_named(target: str) -> None:
    assert_named("pictures-swapped", target, "batch-rows")


def test_a_model_of_text_has_no_place_for_it() -> None:
    assert_refused("pictures-swapped", "builtin:gqa", "takes no picture and no sound")
