"""A composed fault as text: what it says, what is refused."""

from __future__ import annotations

import pytest

from attncheck.core.errors import UsageError
from attncheck.run.random_faults.parts import RandomFault, parse


def test_defaults_are_left_out_of_the_text() -> None:
    fault = RandomFault(what="keys", how="slot:1", heads="0", tokens="4-7", when="step")
    assert str(fault) == "what=keys,how=slot:1,heads=0,tokens=4-7,when=step"
    assert parse(str(fault)) == fault
    assert (fault.kind, fault.number, fault.span) == ("slot", 1.0, (4, 7))


def test_tokens_may_have_no_end() -> None:
    assert RandomFault(what="keys", how="zero", tokens="9-").span == (9, None)
    assert RandomFault(what="keys", how="zero").span == (0, None)


@pytest.mark.parametrize(
    "text",
    [
        "what=keys",
        "what=keys,how=slot:1,colour=red",
        "what=keys,how=window:3",
        "what=cells,how=slot:1",
        "what=keys,how=zero,when=sometimes",
    ],
)
def test_what_is_no_fault_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse(text)
