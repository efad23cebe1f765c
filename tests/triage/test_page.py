"""The answer as Markdown and in words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from triaging import investigation

from attncheck.triage.answer import GreedySplit
from attncheck.triage.page import markdown, split_words


def test_markdown_holds_the_answer_its_table_and_what_was_tried() -> None:
    triage = investigation("builtin:gqa", "bfloat16", symptom="batch").run()
    text = markdown(triage)
    assert text.startswith("### EXPECTED NUMERICS: builtin:gqa\n")
    assert "| bfloat16 |" in text
    assert "| control | pass |" in text
    assert markdown(replace(triage, script="print(1)")).count("```python\nprint(1)\n```") == 1


@pytest.mark.parametrize(("margin", "said"), [(0.01, "nearer than"), (0.5, "farther apart than")])
def test_a_turn_of_greedy_text_is_held_against_what_the_logits_differ_by(
    margin: float, said: str
) -> None:
    split = GreedySplit(
        position=9, chosen="'a'", other="'b'", margin=margin, difference=0.1, flips=3, tokens=24
    )
    assert said in split_words(split)
