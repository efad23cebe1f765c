"""The answer as Markdown and in words."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from triaging import investigation

from attncheck.core.finding import Diagnosis, Finding, Proof
from attncheck.core.verdict import Verdict
from attncheck.triage.answer import OWN, GreedySplit, Step, Triage, TriageAnswer
from attncheck.triage.page import markdown, parts, split_words, steps_grid, without_folders
from attncheck.triage.words import advised, headline


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


def confirmed(diagnosis: Diagnosis, summary: str = "it reads others") -> str:
    finding = Finding(probe="reference", verdict=Verdict.FAIL, summary=summary, diagnosis=diagnosis)
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
    assert "keys of token 3 are zero: it reads others." in text


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


def test_damaged_weights_are_the_sentence_whatever_they_lead_to() -> None:
    advice = "weight holds a value that is not finite. Load it again."
    text = confirmed(Diagnosis(fault="weights-not-finite", how="reproduced", advice=advice))
    assert "weights-not-finite: weight holds a value that is not finite." in text


def test_what_was_measured_is_not_said_twice() -> None:
    said = "Keys of token 3 are zero."
    found = Diagnosis(fault="", how="measured", sentence=said, advice=f"{said} Store them.")
    finding = Finding(probe="axes", verdict=Verdict.FAIL, summary="", diagnosis=found)
    triage = Triage(target="x", answer=TriageAnswer.CONFIRMED, headline="", finding=finding)
    told = dict(parts(replace(triage, advice=found.advice)))
    assert told["what to do"] == "Store them."


def test_what_to_send_is_what_the_report_leaves_open_and_its_own_release() -> None:
    triage = Triage(
        target="x",
        answer=TriageAnswer.NOT_REPRODUCED,
        headline="",
        told=(("--prompt", "'one two'"), ("--dtype", "float32"), ("transformers", "4.57.1")),
        called="forward(), one sequence of the prompts: 2 tokens",
        read=(("versions", "torch 2.13.0, transformers 5.24.0"),),
    )
    assert advised(triage) == (
        "Send what is missing here: a good run to compare with (--against). The report is of "
        "transformers 4.57.1, this ran 5.24.0: run it there as well."
    )
    assert "the prompts whole (--prompt)" in advised(replace(triage, told=(), called=""))


def test_on_a_terminal_steps_that_agree_share_a_row_and_in_markdown_they_do_not() -> None:
    names = ("finite values", "reference", "padding", "window", "labels", "gradient", "control")
    steps = [Step(name=name, verdict=Verdict.PASS, words="equal") for name in names]
    steps.insert(1, Step(name="batch-rows", verdict=Verdict.FAIL, words="wrong"))
    triage = Triage(target="x", answer=TriageAnswer.NOT_REPRODUCED, headline="", steps=tuple(steps))
    rows = steps_grid(triage, brief=True).cells
    assert [row[0] for row in rows] == ["finite values", "batch-rows", "control", "5 others"]
    assert rows[-1][-1] == "reference, padding, window, labels, gradient"
    assert len(steps_grid(triage).cells) == len(steps)


def test_a_call_that_cannot_be_run_here_is_said_first() -> None:
    step = Step(name=OWN, verdict=Verdict.SKIP, words="generate() raises ValueError: odd")
    triage = Triage(target="x", answer=TriageAnswer.NOT_REPRODUCED, headline="", steps=(step,))
    assert headline(triage, "float32") == (
        "the reporter's own call cannot be run here (generate() raises ValueError: odd), and none "
        "of 0 steps shows a difference beyond rounding"
    )


def test_what_was_compared_is_said_once() -> None:
    said = "What layers read, prefill: layers.2: keys have other lengths."
    text = confirmed(
        Diagnosis(fault="", how="measured", sentence=said), "what layers read, prefill: 1 layer"
    )
    assert "\n\nwhat layers read, prefill: 1 layer.\n" in text
