"""A capability is its reason: empty where the model has it."""

from __future__ import annotations

import pytest

from attncheck.core.capability import Capability
from attncheck.core.errors import CallFailed, CannotInject, Unsupported


def test_the_first_of_two_that_fails_says_why() -> None:
    can, first, second = Capability(), Capability("no cache"), Capability("no mask")
    assert (can & second) is second
    assert (first & second) is first
    assert (first & can) is first
    assert bool(can & can)


def test_what_is_required_and_missing_raises_its_own_error() -> None:
    Capability().require()
    with pytest.raises(Unsupported, match="^no cache$"):
        Capability("no cache").require()
    with pytest.raises(CannotInject, match="^no cache$"):
        Capability("no cache").require(CannotInject)
    broken = Capability("it raises", CallFailed)
    with pytest.raises(CallFailed, match="^it raises$"):
        broken.require()
