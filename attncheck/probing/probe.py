"""The base class of all probes, and what becomes of a case that the model refuses or breaks on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from attncheck.core.errors import Unsupported, first_line
from attncheck.core.finding import Evidence, Ruling
from attncheck.core.measurement import Measurement, not_measured
from attncheck.core.ruling import judge_cases
from attncheck.model.refusal import REFUSALS, classified, of_the_model
from attncheck.model.subject import Subject

if TYPE_CHECKING:
    from typing_extensions import TypeVarTuple, Unpack

    Args = TypeVarTuple("Args")

Cost = Literal["cheap", "expensive"]


class Probe(ABC):
    """One question about a model's attention, as a frozen dataclass whose fields are its options.

    `needs` names capabilities (`subject.can`): a missing one skips the probe with its reason.
    `controls` names faults in order of preference: after a pass the first two that can be injected
    are, and the probe must notice them.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    cost: ClassVar[Cost] = "cheap"
    needs: ClassVar[tuple[str, ...]] = ()
    controls: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def measure(self, subject: Subject) -> Iterator[Measurement]:
        """Yield the cases, the most telling ones first: a control stops at the first that its fault
        breaks.
        """

    def judge(self, evidence: Evidence) -> Ruling:
        """Decide from the evidence alone: unless a probe says otherwise, the worst case decides."""
        return judge_cases(evidence)


def attempt(
    name: str, measured: Callable[[Unpack[Args]], Measurement], *args: Unpack[Args]
) -> Measurement:
    """The case that `measured(*args)` returns; a skipped one with the reason of `Unsupported`; or a
    `BrokenCall` where the model accepted a call and broke on it.
    """
    try:
        return measured(*args)
    except Unsupported as reason:
        return not_measured(name, reason)
    except REFUSALS as error:
        if not of_the_model(error):
            raise
        return not_measured(name, classified(error, f"the call raises {first_line(error)}"))
