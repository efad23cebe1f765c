"""masked-states-visible is injected in a model whose masked states are switched off, caught and
named.
"""

from __future__ import annotations

import pytest
from media_models import assert_named, masking_multimodal, multimodal

from attncheck.core.errors import CannotInject
from attncheck.faults import registry


@pytest.mark.parametrize("probe", ["future-token", "batch-rows"])
def test_it_is_caught_and_named(probe: str) -> None:
    assert_named("masked-states-visible", masking_multimodal(), probe)


def test_a_model_without_cross_attention_has_no_place_for_it() -> None:
    fault = registry.fault("masked-states-visible")
    with (
        pytest.raises(CannotInject, match="no mask over the states"),
        fault.injected(multimodal("llava")),
    ):
        pass
