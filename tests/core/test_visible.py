"""No sign of a foreign text reaches a screen, a page or a table as what it commands."""

from __future__ import annotations

import pytest

from attncheck.core.finding import Finding
from attncheck.core.verdict import Verdict
from attncheck.core.visible import made_visible, one_line, shortened, visible
from attncheck.report.model import TargetReport

HOSTILE = "\x1b[31mred\x1b[0m\x07 \x9b2J \u202eevil \u2028 \u200b \ud800"
SHOWN = r"\x1b[31mred\x1b[0m\x07 \x9b2J \u202eevil \u2028 \u200b \ud800"


@pytest.mark.parametrize("text", ["plain", "größer ≤ 3 × ✅", "two\nlines\tand a tab", "C:\\new"])
def test_text_that_commands_nothing_stays(text: str) -> None:
    assert visible(text) == text


def test_what_commands_is_written_as_its_escape_sequence() -> None:
    assert visible(HOSTILE) == SHOWN
    assert visible(SHOWN) == SHOWN


def test_one_line_has_single_blanks() -> None:
    assert one_line("a\n\t b\x1b") == r"a b\x1b"


def test_a_long_text_ends_with_its_length() -> None:
    assert shortened("x" * 5000, 3) == "xxx… (5000 characters)"
    assert shortened("xxx", 3) == "xxx"


def test_every_text_of_a_report_is_made_visible_and_no_number_changes() -> None:
    finding = Finding(
        probe="mine",
        verdict=Verdict.FAIL,
        summary=HOSTILE,
        error=f"Traceback\n{HOSTILE}",
        replay={"tokens": [1, 2], HOSTILE: (HOSTILE, 3)},
    )
    target = TargetReport(target="t", model={"class": HOSTILE}, results=(finding,), seconds=0.1)
    shown = made_visible(target)
    assert shown.model == {"class": SHOWN}
    assert shown.results[0].error == f"Traceback\n{SHOWN}"
    assert shown.results[0].replay == {"tokens": [1, 2], SHOWN: (SHOWN, 3)}
    assert (shown.results[0].verdict, shown.seconds) == (Verdict.FAIL, 0.1)
    assert made_visible(shown) is shown
