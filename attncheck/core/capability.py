"""What a model may be able to take, found out once by trying, with the reason where it cannot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, final

from attncheck.core.errors import Unsupported

T = TypeVar("T")
State = tuple[Any, ...]


@final
@dataclass(frozen=True)
class Capability:
    """True where the model can; otherwise `reason` is a sentence that becomes the reason of a
    `skip`, or of a `fail` where the model accepts the call and breaks on it (`error`).
    """

    reason: str = ""
    error: type[Unsupported] = Unsupported

    @classmethod
    def lacking(cls, reason: Unsupported) -> Capability:
        """What a call showed that cannot be made."""
        return cls(str(reason), type(reason))

    def __bool__(self) -> bool:
        return not self.reason

    def __and__(self, other: Capability) -> Capability:
        return other if self else self

    def require(self, error: type[Unsupported] | None = None) -> None:
        """Do nothing where the model can.

        Raises:
            Unsupported: it cannot (or another `error`), with the reason.
            CallFailed: it accepts the call, and breaks on it.
        """
        if self.reason:
            raise (error or self.error)(self.reason)


@dataclass(kw_only=True)
class Answers:
    """What was found out about a model in each of its states. What holds in a state holds in every
    state that adds to it: `state` is the tuple of the faults that are injected now.
    """

    state: Callable[[], State]
    found: dict[tuple[str, State] | None, Any] = field(default_factory=dict)

    def knows(self, name: str) -> bool:
        """Whether something was found out already, in the present state or one that it adds to."""
        return self.key(name) is not None

    def learn(self, name: str, answer: Any) -> None:
        """Remember an answer of the present state."""
        self.found[name, self.state()] = answer

    def key(self, name: str) -> tuple[str, State] | None:
        """Where an answer is: in the first state that has one."""
        state = self.state()
        keys = ((name, state[:depth]) for depth in range(len(state) + 1))
        return next((key for key in keys if key in self.found), None)


@final
class Tried(Generic[T]):
    """A property of an `Answers` class that is found out when it is first read in a state."""

    def __init__(self, attempt: Callable[[Any], T]) -> None:
        self.attempt, self.name, self.__doc__ = attempt, attempt.__name__, attempt.__doc__

    def __get__(self, answers: Answers, owner: type[Answers]) -> T:
        if not answers.knows(self.name):
            answers.learn(self.name, self.attempt(answers))
        answer: T = answers.found[answers.key(self.name)]
        return answer
