"""The base class of all probes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, Literal

from attncheck.core.finding import Evidence, Ruling
from attncheck.core.measurement import Measurement
from attncheck.core.ruling import judge_cases
from attncheck.model.subject import Subject

Cost = Literal["cheap", "expensive"]


class Probe(ABC):
    """One question about a model's attention, as a frozen dataclass whose fields are its options.

    `needs` names capabilities (`subject.can`): a missing one skips the probe with its reason.
    `controls` names faults in order of preference: after a pass the first two that can be injected
    are, and the probe must notice them. A `promise` is of what a config states, and is always
    judged in the highest precision that fits: every case, or those of these names.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    cost: ClassVar[Cost] = "cheap"
    needs: ClassVar[tuple[str, ...]] = ()
    controls: ClassVar[tuple[str, ...]] = ()
    promise: ClassVar[bool | tuple[str, ...]] = False

    @abstractmethod
    def measure(self, subject: Subject) -> Iterator[Measurement]:
        """Yield the cases, the most telling ones first: a control stops at the first that its fault
        breaks.
        """

    def judge(self, evidence: Evidence) -> Ruling:
        """Decide from the evidence alone: unless a probe says otherwise, the worst case decides."""
        return judge_cases(evidence)


def promised(probe: Probe, case: str) -> bool:
    """Whether this case is of what a config states. A class of one's own need not say."""
    promise: bool | tuple[str, ...] = getattr(probe, "promise", False)
    return promise if isinstance(promise, bool) else case in promise
