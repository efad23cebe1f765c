"""Hypotheses limited to some layers, and two at once."""

from __future__ import annotations

import pytest
import torch

from attncheck.core.errors import Unsupported
from attncheck.faults.engine.expected import View
from attncheck.faults.engine.hypothesis import Hypothesis
from attncheck.faults.engine.trusted import Change
from attncheck.model.forward_spec import ForwardSpec

SPEC = ForwardSpec(((5, 6, 7),))
MASKED = Hypothesis("by +1", Change(allowed=lambda allowed, view: ~allowed), fault="one")


def test_a_layer_alone_has_the_same_change_and_says_where() -> None:
    limited = MASKED.within(range(2, 3), "in layer 2 only")
    change = limited.change_of(SPEC)
    assert change is not None
    assert change.layers == range(2, 3)
    assert limited.label == "one (by +1, in layer 2 only)"


def test_two_changes_of_readable_keys_follow_each_other() -> None:
    both = MASKED.joined(
        Hypothesis(change=Change(allowed=lambda allowed, view: allowed & False), fault="two")
    )
    assert both is not None
    assert both.label == "one (by +1, together with two)"
    change = both.change_of(SPEC)
    assert change is not None
    assert change.allowed is not None
    view = View(spec=SPEC, layer=0, start=0, stop=3)
    assert not change.allowed(torch.zeros(1, 1, 3, 3, dtype=torch.bool), view).any()


def test_two_changes_of_one_field_cannot_be_joined() -> None:
    first, second = (
        Hypothesis(change=Change(stored_as=dtype), fault=str(dtype))
        for dtype in (torch.float16, torch.bfloat16)
    )
    both = first.joined(second)
    assert both is not None
    with pytest.raises(Unsupported, match="two changes of `stored_as`"):
        both.change_of(SPEC)
    assert first.joined(first) is None
