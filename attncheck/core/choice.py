"""Which questions of a probe a run asks: all of them, or those that it chooses.

A question is one case, or several that share their forwards, under one name. A probe measures what
`chosen(name)` allows, and `attempt` asks it for every case by itself. Questions go by keys in which
numbers are left open, since lengths differ from model to model. Standard library only.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import final

LEFT_OUT = "left out of this run"
"""The note of a case that was not chosen; such cases never leave the probe."""


def everything(key: str) -> bool:
    """Every question is asked."""
    return True


@final
@dataclass
class Choice:
    """What one run of a probe asks: `wanted` decides by key. `asked` and `left` are the keys of the
    questions that came up, by their names; `question` is the key of the one asked last, and `cases`
    holds that of every case, by the case's name. `brief` leaves to the precision of the model what
    it decides without a doubt.
    """

    wanted: Callable[[str], bool] = everything
    asked: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    cases: dict[str, str] = field(default_factory=dict)
    question: str = ""
    inside: bool = False
    brief: bool = False

    def takes(self, name: str) -> bool:
        """Whether the question of this name is asked now. One that was asked once always is, so
        that a control, or another precision, is asked the same.
        """
        key = self.asked.get(name) or self.left.get(name) or self._key(name)
        if name not in self.asked and not self.wanted(key):
            self.left[name] = key
            return False
        self.left.pop(name, None)
        self.asked[name] = self.question = key
        return True

    def _key(self, name: str) -> str:
        """The name with its numbers left open; the second and later ones of a kind are numbered."""
        pattern = re.sub(r"\d+", "#", name)
        same = Counter(
            key.partition(" (no. ")[0] for key in (*self.asked.values(), *self.left.values())
        )[pattern]
        return f"{pattern} (no. {same + 1})" if same else pattern


_ACTIVE: ContextVar[Choice | None] = ContextVar("choice", default=None)


@contextlib.contextmanager
def choosing(choice: Choice) -> Iterator[Choice]:
    """Probes that measure inside ask only what the choice takes."""
    token = _ACTIVE.set(choice)
    try:
        yield choice
    finally:
        _ACTIVE.reset(token)


@contextlib.contextmanager
def only(key: str) -> Iterator[None]:
    """Of what the choice has asked, one question alone is asked inside."""
    choice = _ACTIVE.get() or Choice()
    known = {**choice.left, **choice.asked}
    with choosing(Choice(key.__eq__, left=known)):
        yield


def chosen(name: str) -> bool:
    """Whether a probe is to ask the question of this name."""
    choice = _ACTIVE.get()
    return choice is None or choice.inside or choice.takes(name)


def brief() -> bool:
    """Whether this run asks in a higher precision only what is in doubt."""
    choice = _ACTIVE.get()
    return choice is not None and choice.brief


@contextlib.contextmanager
def question(name: str) -> Iterator[bool]:
    """Whether the question of this name is asked; what comes up inside belongs to it."""
    choice = _ACTIVE.get()
    if choice is None or choice.inside:
        yield True
        return
    choice.inside = choice.takes(name)
    try:
        yield choice.inside
    finally:
        choice.inside = False


def kept(name: str, note: str) -> bool:
    """Whether a case of this name and note was asked; the choice notes the question behind it."""
    choice = _ACTIVE.get()
    if note == LEFT_OUT:
        return False
    if choice is not None:
        choice.cases.setdefault(name, choice.question)
    return True
