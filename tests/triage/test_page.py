"""The answer as Markdown and in words."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from triaging import investigation

from attncheck.core.finding import Diagnosis, Finding, Proof
from attncheck.core.verdict import Verdict
from attncheck.triage.answer import GreedySplit, Triage, TriageAnswer
from attncheck.triage.page import markdown, split_words, without_folders
from attncheck.triage.words import headline


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


def confirmed(diagnosis: Diagnosis) -> str:
    finding = Finding(
        probe="reference", verdict=Verdict.FAIL, summary="it reads others", diagnosis=diagnosis
    )
    triage = Triage(target="x", answer=TriageAnswer.CONFIRMED, headline="", finding=finding)
    return markdown(replace(triage, headline=headline(triage, "float32")))


@pytest.mark.parametrize("how", get_args(Proof))
def test_every_kind_of_diagnosis_is_a_cause(how: Proof) -> None:
    text = confirmed(Diagnosis(fault="" if how == "unexplained" else "softmax-scale", how=how))
    causes = {
        "reproduced": "reproduced by softmax-scale",
        "measured": "measured: softmax-scale",
        "repaired": "fixed by softmax-scale",
        "unexplained": "no known fault gives these logits",
    }
    assert causes[how] in text


def test_a_measured_difference_without_a_name_is_said_in_its_sentence() -> None:
    text = confirmed(Diagnosis(fault="", how="measured", sentence="Keys of token 3 are zero."))
    assert "measured: Keys of token 3 are zero." in text
    assert "a difference beyond rounding: it reads others" in text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("triage /home/me/work/model.py:make --dtype x", "triage model.py:make --dtype x"),
        ('path = "/tmp/a/b/weights.gguf"', 'path = "weights.gguf"'),
        ("~/models/tiny and org/name", "tiny and org/name"),
        ("https://host/a/b and 3/4 of 1/2", "https://host/a/b and 3/4 of 1/2"),
        ("triage model.py:make", "triage model.py:make"),
    ],
)
def test_no_folder_of_this_machine_is_in_the_page(text: str, said: str) -> None:
    assert without_folders(text) == said
