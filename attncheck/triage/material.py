"""The sequences that triage uses: the reporter's prompts, or the subject's own inputs.

Axes: B batch, T positions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import final

from torch import nn

from attncheck.core.errors import CannotInject, Unsupported
from attncheck.faults.engine.injection import decoder_layers
from attncheck.model.inputs import Row, Tokens
from attncheck.model.subject import Subject
from attncheck.triage.answer import Question

BRIEF = 96
"""Call patterns are crossed on sequences of at most this many tokens: each takes a forward."""
SEQUENCES = 3
MOST = 8
"""Of a large batch of drawn ids so many sequences are run."""


@final
@dataclass(frozen=True)
class Material:
    """Some sequences. `own` says that they come from the reporter's prompts, `whole` that they are
    these prompts and nothing else; `pad` is the id that the reporter's tokenizer pads with. `why`
    is the reason for drawn tokens, and `filled` says that the last row is drawn, as long as the
    tokenizer pads every prompt.
    """

    rows: Tokens
    own: bool
    whole: bool = False
    pad: int | None = None
    why: str = "no prompt was given"
    filled: bool = False

    def first(self, length: int) -> Material:
        """The same sequences, each of at most `length` tokens."""
        return replace(self, rows=tuple(row[:length] for row in self.rows))

    @property
    def length(self) -> int:
        """The length of the longest sequence."""
        return max(len(row) for row in self.rows)

    @property
    def unequal(self) -> bool:
        """Whether the sequences have different lengths."""
        return len({len(row) for row in self.rows}) > 1


def material(subject: Subject, question: Question) -> Material:
    """The reporter's prompts, all of them and whole; without prompts or a tokenizer, the main
    sequence and two others.

    Raises:
        Unsupported: a prompt has no token, or one that the model has no embedding for.
    """
    issue = question.issue
    if not question.prompts and (issue.ids or issue.shape):
        return _given(subject, question)
    if subject.tokenizer is None and question.prompts:
        return replace(_drawn(subject), why="the target has no tokenizer for the prompts")
    if not question.prompts:
        return _drawn(subject)
    rows = tuple(_encoded(subject, prompt, question) for prompt in question.prompts)
    found = Material(rows, own=True, whole=True, pad=_pad_of(subject))
    length = min(issue.padded_to, subject.inputs.room)
    if length <= found.length:
        return found
    filler = subject.inputs.fresh(length, salt=39)
    return replace(found, rows=(*rows, filler), filled=True)


def _given(subject: Subject, question: Question) -> Material:
    """Sequences that stand in the report as ids, or drawn ones of the shape that it states."""
    ids, vocab = question.issue.ids, subject.facts.vocab
    if ids and all(token < vocab for row in ids for token in row):
        return Material(ids, own=True, whole=True, pad=_pad_of(subject))
    if ids:
        rows, length = len(ids), max(map(len, ids))
    else:
        rows, length = question.issue.shape
    length = max(2, min(length, subject.inputs.room))
    drawn = tuple(subject.inputs.fresh(length, salt=40 + n) for n in range(min(rows, MOST)))
    why = "ids outside the vocabulary" if ids else "the report draws them"
    return Material(drawn, own=False, whole=True, pad=_pad_of(subject), why=why)


def _drawn(subject: Subject) -> Material:
    inputs = subject.inputs
    others = (inputs.other(inputs.row, salt=salt) for salt in (21, 22))
    return Material((inputs.row, *others), own=False)


def brief(subject: Subject, whole: Material) -> Material:
    """Three sequences that are cheap to run: the beginnings of the prompts, and drawn ones."""
    rows = [row[:BRIEF] for row in whole.rows if len(row) > 1][:SEQUENCES]
    if not whole.own or not rows:
        return _drawn(subject)
    fill = [subject.inputs.other(rows[0], salt=21 + n) for n in range(SEQUENCES - len(rows))]
    return Material((*rows, *fill), own=True, pad=whole.pad)


def text_of(subject: Subject, prompt: str, question: Question) -> str:
    """What the tokenizer gets: the prompt, or the chat template's text as the reporter makes it."""
    if not question.chat:
        return prompt
    turns = question.issue.conversation(prompt)
    try:
        return templated(subject, turns, question)
    except Exception:  # templates raise what they like for roles that they do not take
        return templated(subject, (("user", prompt),), question)


def templated(subject: Subject, turns: tuple[tuple[str, str], ...], question: Question) -> str:
    """The text that the chat template makes of a conversation."""
    chat = [{"role": role, "content": words} for role, words in turns]
    text: str = subject.tokenizer.apply_chat_template(
        chat, tokenize=False, add_generation_prompt=not question.issue.unopened
    )
    return text


def _encoded(subject: Subject, prompt: str, question: Question) -> Row:
    special = not question.chat or question.issue.retokenized
    text = text_of(subject, prompt, question)
    ids = [int(each) for each in subject.tokenizer(text, add_special_tokens=special)["input_ids"]]
    ids = ids[: question.issue.truncated or len(ids)]
    outside = [each for each in ids if not 0 <= each < subject.facts.vocab]
    if outside:
        raise Unsupported(
            f"the tokenizer gives token {outside[0]}, outside the model's vocabulary of "
            f"{subject.facts.vocab}: they do not belong together"
        )
    if not ids:
        raise Unsupported("a prompt without any token leaves nothing to compare")
    return tuple(ids)


def _pad_of(subject: Subject) -> int | None:
    """The id that the tokenizer pads with; its end of text where it has none, as most users set."""
    names = ("pad_token_id", "eos_token_id")
    ids = (getattr(subject.tokenizer, name, None) for name in names)
    return next((each for each in ids if each is not None and each < subject.facts.vocab), None)


def shorter(subject: Subject, length: int) -> Subject:
    """The subject with its main sequence cut to `length` tokens."""
    whole = subject.inputs
    boundaries = tuple(each for each in whole.boundaries if each.length + 1 < length)
    return subject.with_inputs(replace(whole, row=whole.row[:length], boundaries=boundaries))


def depth(subject: Subject) -> int:
    """The number of decoder layers; 0 where it is unknown."""
    try:
        return len(decoder_layers(subject))
    except (CannotInject, Unsupported):
        return 0


@contextlib.contextmanager
def shallower(subject: Subject, layers: int) -> Iterator[None]:
    """Run only the first `layers` decoder layers for a while.

    Raises:
        CannotInject: the layers are in no list that can be cut.
    """
    home, name, whole = _list_of(subject.model, decoder_layers(subject)[0])
    setattr(home, name, nn.ModuleList(list(whole)[:layers]))
    try:
        with subject.passes.under(f"the first {layers} layers", False):
            yield
    finally:
        setattr(home, name, whole)


def _list_of(model: nn.Module, layer: nn.Module) -> tuple[nn.Module, str, nn.ModuleList]:
    path = next(name for name, module in model.named_modules() if module is layer)
    above, _, name = path.rpartition(".")[0].rpartition(".")
    home = model.get_submodule(above)
    whole = getattr(home, name, None)
    if not isinstance(whole, nn.ModuleList):
        raise CannotInject("the layers are in no list that can be cut")
    return home, name, whole
