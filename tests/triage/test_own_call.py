"""The reporter's own call, whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from attncheck.core.errors import TargetError, Unsupported
from attncheck.core.settings import Settings
from attncheck.model.subject import Subject
from attncheck.targets.load import load
from attncheck.triage.answer import Question
from attncheck.triage.call_pattern import CallPattern
from attncheck.triage.expected import explained
from attncheck.triage.issue import Issue
from attncheck.triage.material import material
from attncheck.triage.own_call import OwnCall, own_call

STRANGERS = str(Path(__file__).with_name("strangers.py"))
LONG = "one cat sat on two mat " * 30


def test_prompts_stay_whole_and_are_padded_on_the_tokenizers_side() -> None:
    subject = load(f"{STRANGERS}:rotary", Settings())
    question = Question(prompts=(LONG, "two dog ran"))
    call = own_call(subject, question, material(subject, question))
    assert call is not None
    assert [len(row) for row in call.rows] == [180, 3]
    assert call.pattern.padding == "left"
    said = str(call)
    assert "2 sequences of the prompts: 180, 3 tokens, up to 177 of padding, left-padded" in said
    assert not call.case(subject).beyond


def test_padding_that_a_forward_counts_is_shown_and_agrees_with_positions() -> None:
    subject = load(f"{STRANGERS}:absolute", Settings())
    question = Question(prompts=("one cat sat on two mat", "two dog ran"))
    call = own_call(subject, question, material(subject, question))
    assert call is not None
    assert call.pattern.positions == "implicit"
    assert call.case(subject).beyond
    assert not call.explicit().case(subject).beyond


def test_beams_of_one_prompt_are_held_against_those_without_a_cache() -> None:
    for name, wrong in (("beams_not_reordered", True), ("rotary", False)):
        subject = load(f"{STRANGERS}:{name}", Settings())
        question = Question(generate=6, beams=3)
        call = own_call(subject, question, material(subject, question))
        assert call is not None
        assert call.case(subject).beyond is wrong


def test_prompts_that_are_called_one_by_one_get_no_padding() -> None:
    subject = load(f"{STRANGERS}:absolute", Settings())
    prompts = ("one cat sat on two mat", "two dog ran")
    question = Question(prompts=prompts, generate=3, issue=Issue(prompts=prompts, singly=True))
    call = own_call(subject, question, material(subject, question))
    assert call is not None
    assert "2 sequences of the prompts: 6, 3 tokens, each alone" in str(call)
    assert not call.case(subject).beyond
    assert own_call(subject, replace(question, generate=0), material(subject, question)) is None


def test_ids_of_a_report_are_run_as_they_stand() -> None:
    subject = load("builtin:gqa", Settings())
    issue = Issue(ids=((5, 6, 7), (8, 9, 10)))
    found = material(subject, Question(issue=issue))
    assert (found.rows, found.whole) == (issue.ids, True)
    foreign = material(subject, Question(issue=Issue(ids=((5, 1 << 20, 7),))))
    assert (len(foreign.rows[0]), foreign.why) == (3, "ids outside the vocabulary")
    assert [len(row) for row in material(subject, Question(issue=Issue(shape=(2, 9)))).rows] == [
        9,
        9,
    ]


def test_one_prompt_alone_is_no_call_of_its_own() -> None:
    subject = load(f"{STRANGERS}:rotary", Settings())
    question = Question(prompts=("two dog ran",))
    assert own_call(subject, question, material(subject, question)) is None


@pytest.mark.parametrize("cache", ["", "static", "off"])
def test_generated_text_of_a_healthy_model_agrees_with_one_forward(cache: str) -> None:
    subject = load(f"{STRANGERS}:rotary", Settings())
    prompts = ("one cat sat on two mat", "two dog ran")
    question = Question(prompts=prompts, generate=5, pattern=CallPattern(cache=cache))
    call = own_call(subject, question, material(subject, question))
    assert call is not None
    seen = call.run(subject)
    assert not seen.case.beyond
    assert seen.case.positions == 10


def test_a_token_outside_the_vocabulary_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = load(f"{STRANGERS}:rotary", Settings())
    monkeypatch.setattr(subject.model.config, "vocab_size", 4)
    vars(subject.loaded).pop("facts", None)
    with pytest.raises(Unsupported, match="outside the model's vocabulary of"):
        material(subject, Question(prompts=("seven end hill",)))


def test_a_factory_runs_under_the_implementation_that_is_named() -> None:
    assert load(f"{STRANGERS}:rotary", Settings(attn="eager")).attn == "eager"
    with pytest.raises(TargetError, match="--attn no_such cannot be used"):
        load(f"{STRANGERS}:rotary", Settings(attn="no_such"))


def test_a_model_without_implementations_refuses_one(tmp_path: Path) -> None:
    made: Callable[[str], str] = lambda body: f"import torch\n\n\n{body}"  # noqa: E731
    file = tmp_path / "own.py"
    file.write_text(
        made(
            "class Own(torch.nn.Module):\n"
            "    def __init__(self):\n"
            "        super().__init__()\n"
            "        self.embed = torch.nn.Embedding(16, 8)\n"
            "        self.head = torch.nn.Linear(8, 16)\n\n"
            "    def forward(self, input_ids):\n"
            "        return self.head(self.embed(input_ids).cumsum(1))\n\n\n"
            "def make():\n"
            "    return Own()\n"
        )
    )
    with pytest.raises(TargetError, match="--attn eager cannot be used: Own cannot switch"):
        load(f"{file}:make", Settings(attn="eager"))


def batch_without_mask(side: str, generate: int, ends: bool) -> tuple[Subject, OwnCall]:
    subject = load(f"{STRANGERS}:rotary", Settings())
    if ends:
        subject.tokenizer.pad_token = subject.tokenizer.eos_token
    question = Question(
        prompts=("one cat sat on two mat", "two dog ran"),
        generate=generate,
        pattern=CallPattern(padding=side),
        issue=Issue(unmasked=True),
    )
    call = own_call(subject, question, material(subject, question))
    assert call is not None
    return subject, call


@pytest.mark.parametrize(
    ("side", "generate", "title"),
    [
        ("left", 0, "no `attention_mask` is passed"),
        ("left", 4, "no `attention_mask` is passed"),
        ("right", 4, "no `attention_mask` is passed; padding on the right of a prompt"),
    ],
)
def test_padding_that_no_mask_hides_is_shown_to_be_the_reason(
    side: str, generate: int, title: str
) -> None:
    subject, call = batch_without_mask(side, generate, ends=True)
    found = explained(subject, call, call.case(subject))
    assert found is not None
    assert (found.title, found.decides) == (title, True)


def test_a_mask_of_ones_hides_no_padding() -> None:
    subject = load(f"{STRANGERS}:rotary", Settings())
    question = Question(
        prompts=("one cat sat on two mat", "two dog ran"),
        generate=4,
        pattern=CallPattern(padding="left"),
        issue=Issue(mask_of_ones=True),
    )
    call = own_call(subject, question, material(subject, question))
    assert call is not None
    remark = explained(subject, call, call.case(subject))
    assert remark is not None
    assert remark.title == "the `attention_mask` is all ones"


def test_generate_finds_the_mask_itself_where_padding_is_a_token_of_its_own() -> None:
    subject, call = batch_without_mask("left", 4, ends=False)
    assert not call.case(subject).beyond


def test_a_prompt_that_the_tokenizer_pads_to_a_length_is_run_with_that_padding() -> None:
    subject = load(f"{STRANGERS}:rotary", Settings())
    prompts = ("one cat sat on two mat",)
    issue = Issue(prompts=prompts, padded_to=16, padding="right")
    question = Question(
        prompts=prompts, generate=4, pattern=CallPattern(padding="right"), issue=issue
    )
    call = own_call(subject, question, material(subject, question))
    assert call is not None
    assert "one sequence of the prompts: 6 tokens, up to 10 of padding" in str(call)
    remark = explained(subject, call, call.case(subject))
    assert remark is not None
    assert remark.title == "padding on the right of a prompt"
