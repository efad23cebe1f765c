"""Calls that do something else than their authors mean."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tokenizers
import transformers
from tokenizers.processors import TemplateProcessing

from attncheck.core.settings import Settings
from attncheck.model.loaded import LoadedModel
from attncheck.model.subject import Subject
from attncheck.targets import builtin
from attncheck.targets.load import load
from attncheck.triage.answer import Question
from attncheck.triage.issue import Issue, read_issue
from attncheck.triage.material import material
from attncheck.triage.misuse import misused

WORDS = ("<pad>", "<s>", "</s>", "<user>", "<end>", "<bot>", "one", "two", "three", "four", "five")
TEMPLATE = (
    "<s>{% for each in messages %}<user> {{ each['content'] }} <end>{% endfor %}"
    "{% if add_generation_prompt %} <bot>{% endif %}"
)


def subject_with_words(start: bool = True) -> Subject:
    """A healthy model with a tokenizer that adds a start token, and a chat template that writes it
    as well.
    """
    known = {word: at for at, word in enumerate(WORDS)}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(known, "<pad>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    if start:
        words.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        additional_special_tokens=["<user>", "<end>", "<bot>"],
        chat_template=TEMPLATE,
    )
    model = load("builtin:gqa", Settings()).model
    loaded = LoadedModel("model", model, tokenizer)
    return Subject(loaded, loaded.precision)


def test_prompts_that_share_one_cache_are_shown_with_the_effect() -> None:
    subject = subject_with_words()
    asked = Question(prompts=("one two", "three four"), issue=Issue(reused_cache=True))
    (found,) = misused(subject, asked, material(subject, asked))
    assert (found.title, found.decides) == ("one cache for all prompts", True)
    assert titles(subject, Issue(reused_cache=True)) == []  # one prompt shares it with nobody


@pytest.mark.parametrize(
    ("how", "side", "said"),
    [("mean", "left", True), ("last", "right", True), ("last", "left", False)],
)
def test_positions_of_padding_that_the_code_reads_are_said(how: str, side: str, said: bool) -> None:
    subject = subject_with_words()
    subject.tokenizer.padding_side = side
    issue, title = Issue(pooled=how), "padding is among the positions that are read"
    assert titles(subject, issue, prompts=("one two", "three")) == [title] * said
    assert titles(subject, issue, prompts=("one two", "three four")) == []


def test_a_turn_that_the_template_leaves_out_is_named() -> None:
    subject, turns = subject_with_words(), (("system", "four five"), ("user", "one two"))
    issue = Issue(turns=(turns,))
    assert titles(subject, issue, chat=True, prompts=("one two",)) == []
    subject.tokenizer.chat_template = TEMPLATE.replace("in messages", "in messages[1:]")
    found = titles(subject, issue, chat=True, prompts=("one two",))
    assert found == ["the chat template leaves out the system turn"]
    subject.tokenizer.chat_template = "{{ raise_exception('no system role') }}"
    asked = Question(prompts=("one two",), chat=False, issue=issue)
    assert list(misused(subject, asked, material(subject, asked))) == []


@pytest.mark.parametrize(("length", "said"), [(60, True), (12, False)])
def test_a_prompt_that_no_window_carries_to_its_end_is_said(length: int, said: bool) -> None:
    config = transformers.MistralConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2, sliding_window=8
    )
    subject = Subject.of(transformers.MistralForCausalLM(config), "model")
    row = tuple(5 + n % 50 for n in range(length))
    asked = Question(issue=Issue(ids=(row,)))
    found = [each.title for each in misused(subject, asked, material(subject, asked))]
    assert found == ["the prompt is longer than its windows reach"] * said


def titles(subject: Subject, issue: Issue, **question: object) -> list[str]:
    prompts = question.pop("prompts", ("one two three four five",))
    asked = Question(prompts=prompts, issue=issue, **question)  # type: ignore[arg-type]
    return [each.title for each in misused(subject, asked, material(subject, asked))]


def test_a_start_token_that_template_and_tokenizer_add_is_shown_with_its_effect() -> None:
    subject = subject_with_words()
    asked = Question(prompts=("one two",), chat=True, issue=Issue(retokenized=True))
    (found,) = misused(subject, asked, material(subject, asked))
    assert (found.title, found.decides) == ("the start token is there twice", True)
    assert "begins with <s>" in found.words


def test_a_start_token_that_is_there_once_is_no_remark() -> None:
    subject = subject_with_words()
    assert titles(subject, Issue(), chat=True) == []
    assert titles(subject, Issue()) == []


def test_a_prompt_that_holds_the_templates_tokens_went_through_it_already() -> None:
    found = titles(subject_with_words(), Issue(), chat=True, prompts=("<user> one <end>",))
    assert found == ["the chat template is applied twice"]


def test_a_turn_that_is_not_opened_decides_last() -> None:
    subject = subject_with_words()
    asked = Question(prompts=("one two",), chat=True, issue=Issue(unopened=True))
    (found,) = misused(subject, asked, material(subject, asked))
    assert (found.title, found.decides, found.late) == (
        "the assistant's turn is not opened",
        False,
        True,
    )


@pytest.mark.parametrize(
    ("issue", "title"),
    [
        (Issue(max_length=40, short=True), "max_length counts the prompt"),
        (Issue(max_length=6), "max_length counts the prompt"),
        (Issue(default_length=True, short=True), "no length was passed to generate()"),
        (Issue(truncated=3), "the tokenizer cuts the prompt"),
    ],
)
def test_lengths_that_end_an_answer_or_cut_a_prompt_are_said(issue: Issue, title: str) -> None:
    assert titles(subject_with_words(), issue) == [title]


@pytest.mark.parametrize(
    "issue", [Issue(max_length=40), Issue(default_length=True), Issue(truncated=30, short=True)]
)
def test_a_length_that_nobody_complains_of_and_that_cuts_nothing_is_not(issue: Issue) -> None:
    assert titles(subject_with_words(), issue) == []


def test_dropout_of_a_model_that_was_never_put_into_evaluation_is_shown() -> None:
    config = transformers.LlamaConfig(**builtin.SIZE, attention_dropout=0.3, num_key_value_heads=2)
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.train()
    subject = Subject.of(model)
    assert titles(subject, Issue()) == ["the model is in training mode"]
    assert not model.training


def test_a_training_mode_without_dropout_is_no_explanation() -> None:
    told = replace(read_issue("```\nmodel.train()\nout = model(ids)\n```"), prompts=())
    assert told.training_mode
    assert titles(load("builtin:gqa", Settings()), told) == []


def test_a_turn_that_is_not_opened_explains_no_difference_between_two_calls() -> None:
    subject, told = subject_with_words(), Issue(unopened=True, symptom="padding")
    asked = Question(prompts=("one two", "three"), chat=True, issue=told)
    (found,) = misused(subject, asked, material(subject, asked))
    assert not found.late


def test_a_mean_over_tokens_is_no_mean_of_means() -> None:
    subject = subject_with_words()
    asked = Question(
        prompts=("one two three four", "five"), issue=Issue(losses=True, both_ways=True)
    )
    (found,) = misused(subject, asked, material(subject, asked))
    assert (found.title, found.decides) == ("the loss of a batch is a mean over its tokens", True)
    equal = Question(prompts=("one two", "three five"), issue=asked.issue)
    assert not list(misused(subject, equal, material(subject, equal)))


def test_an_embedding_module_that_scales_is_more_than_its_table() -> None:
    subject, issue = subject_with_words(), Issue(embeds="table")
    assert titles(subject, issue) == []
    table = subject.model.get_input_embeddings()
    table.register_forward_hook(lambda module, args, output: output * 8)
    asked = Question(prompts=("one two",), issue=issue)
    (found,) = misused(subject, asked, material(subject, asked))
    assert found.title == "the embedding module does more than look up rows"
    assert "which multiplies them by 8." in found.words


def test_labels_that_hold_the_padding_are_said_with_both_losses() -> None:
    subject = subject_with_words()
    asked = Question(prompts=("one two three four", "five"), issue=Issue(padding_labelled=True))
    (found,) = misused(subject, asked, material(subject, asked))
    assert (found.title, found.decides) == ("the labels hold the padding", True)
    assert "an attention_mask takes no position out of a loss" in found.words
    equal = Question(prompts=("one two", "three five"), issue=asked.issue)
    assert not list(misused(subject, equal, material(subject, equal)))
