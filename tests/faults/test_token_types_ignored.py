"""token-types-ignored is injected, caught by future-token and named."""

from __future__ import annotations

import pytest
from media_models import assert_named, multimodal

from attncheck.core.errors import CannotInject
from attncheck.faults import registry


def test_it_is_caught_and_named() -> None:
    assert_named("token-types-ignored", "gemma3", "future-token")


def test_a_model_without_token_types_has_no_place_for_it() -> None:
    fault = registry.fault("token-types-ignored")
    with (
        pytest.raises(CannotInject, match="forward takes no `token_type_ids`"),
        fault.injected(multimodal("llava")),
    ):
        pass
