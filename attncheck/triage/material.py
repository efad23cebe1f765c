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

LONGEST = 96
"""Prompts are cut to this many tokens, which keeps every forward fast."""


@final
@dataclass(frozen=True)
class Material:
    """Three sequences or more. `own` says that they are the reporter's prompts."""

    rows: Tokens
    own: bool

    def first(self, length: int) -> Material:
        """The same sequences, each of at most `length` tokens."""
        return Material(tuple(row[:length] for row in self.rows), self.own)

    @property
    def length(self) -> int:
        """The length of the longest sequence."""
        return max(len(row) for row in self.rows)


def material(subject: Subject, prompts: tuple[str, ...]) -> Material:
    """The reporter's prompts; without prompts or a tokenizer, the main sequence and two others.

    Raises:
        Unsupported: a prompt has fewer than two tokens.
    """
    inputs = subject.inputs
    if not prompts or subject.tokenizer is None:
        others = (inputs.other(inputs.row, salt=salt) for salt in (21, 22))
        return Material((inputs.row, *others), own=False)
    rows = [_encoded(subject, prompt) for prompt in prompts]
    if any(len(row) < 2 for row in rows):
        raise Unsupported("a prompt of fewer than two tokens leaves nothing to compare")
    fill = [tuple(inputs.other(rows[0], salt=21 + n)) for n in range(3 - len(rows))]
    return Material((*rows, *fill), own=True)


def _encoded(subject: Subject, prompt: str) -> Row:
    ids = subject.tokenizer(prompt)["input_ids"]
    return tuple(int(token) for token in ids if 0 <= int(token) < subject.facts.vocab)[:LONGEST]


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
