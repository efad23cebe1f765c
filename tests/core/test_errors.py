"""One line, what was expected, the nearest valid name."""

from __future__ import annotations

from attncheck.core.errors import first_line, nearest, unknown


def test_the_nearest_name_is_offered() -> None:
    assert (
        unknown("probe", "decode-path", ["decode-paths", "kv-repeat"])
        == "unknown probe `decode-path`: did you mean `decode-paths`?"
    )


def test_all_names_are_offered_when_none_is_near() -> None:
    assert (
        unknown("dtype", "xyz", ["float64", "auto"])
        == "unknown dtype `xyz`: expected one of `auto`, `float64`"
    )
    assert nearest("xyz", ["float64"]) == ""


def test_an_error_is_cut_to_its_first_line() -> None:
    assert first_line(ValueError("one\ntwo")) == "ValueError: one"
    assert first_line(ValueError()) == "ValueError"
