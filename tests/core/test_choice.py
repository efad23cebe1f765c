"""Questions that are chosen or left out, by keys in which numbers are left open."""

from __future__ import annotations

import pytest

from attncheck.core.choice import LEFT_OUT, Choice, choosing, chosen, kept, only, question
from attncheck.core.errors import UsageError
from attncheck.core.extent import WHOLE, RunExtent, seconds_of


def test_without_a_choice_everything_is_asked() -> None:
    assert chosen("anything")
    with question("anything") as asked:
        assert asked


def test_a_question_goes_by_its_name_with_numbers_left_open() -> None:
    choice = Choice({"chunks #+#", "left"}.__contains__)
    with choosing(choice):
        answers = [chosen(name) for name in ("chunks 12+12", "chunks 23+1", "left", "right")]
        assert answers == [True, False, True, False]
        assert [chosen(name) for name in ("chunks 12+12", "chunks 23+1")] == [True, False]
    assert choice.asked == {"chunks 12+12": "chunks #+#", "left": "left"}
    assert choice.left == {"chunks 23+1": "chunks #+# (no. 2)", "right": "right"}


def test_what_was_asked_once_is_asked_again_whatever_is_wanted_then() -> None:
    choice = Choice()
    with choosing(choice):
        assert chosen("one")
        choice.wanted = lambda key: False
        assert chosen("one")
        assert not chosen("two")
        with only("two"):
            assert chosen("two")
            assert not chosen("one")


def test_what_comes_up_inside_a_question_belongs_to_it() -> None:
    choice = Choice({"outer"}.__contains__)
    with choosing(choice):
        with question("outer") as asked:
            assert asked
            assert chosen("inner")
        assert kept("a case", "")
        assert not kept("another", LEFT_OUT)
    assert (choice.asked, choice.left) == ({"outer": "outer"}, {})
    assert choice.cases == {"a case": "outer"}


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30.0), ("2m", 120.0), ("1.5h", 5400.0), ("7", 7.0)]
)
def test_a_time_has_a_unit_or_is_in_seconds(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "0s", "-3s", "soon", "30 days", "inf", "1m30s"])
def test_no_time_is_refused_in_words(text: str) -> None:
    with pytest.raises(UsageError, match="expected a time such as 30s or 2m"):
        seconds_of(text)


def test_an_extent_names_its_options() -> None:
    assert WHOLE.whole
    assert not WHOLE.options
    assert RunExtent(quick=True, seconds=90.0).options == ("--quick", "--budget 90s")
