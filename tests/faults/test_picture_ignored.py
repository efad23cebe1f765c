"""picture-ignored is injected, caught by future-token and named."""

from __future__ import annotations

import pytest
from injecting import assert_refused
from media_models import assert_named


@pytest.mark.parametrize("target", ["llava", "idefics3"])
def test_it_is_caught_and_named(target: str) -> None:
    assert_named("picture-ignored", target, "future-token")


def test_a_model_of_text_has_no_place_for_it() -> None:
    assert_refused("picture-ignored", "builtin:gqa", "takes no picture and no sound")
