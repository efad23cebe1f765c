"""What the zoo's tests share: an animal examined by the probes that may say so, and its findings
explained.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from attncheck.core import registry
from attncheck.core.finding import Finding, Verdict
from attncheck.diagnosis.diagnose import Diagnoser
from attncheck.model.subject import Subject
from attncheck.run.runner import finding_of, noticed
from attncheck.run.selftest import names
from faulty_models.models import Animal, healthy


@dataclass(frozen=True)
class Seen:
    """What came of one animal: the finding that caught it, explained; None where nothing did."""

    animal: Animal
    finding: Finding | None

    @property
    def caught(self) -> bool:
        return self.finding is not None

    @property
    def named(self) -> bool:
        return self.finding is not None and names(self.animal.fault, self.finding.diagnosis)

    @property
    def misnamed(self) -> bool:
        told = self.finding.diagnosis if self.finding else None
        return told is not None and told.how == "reproduced" and not self.named

    @property
    def located(self) -> bool | None:
        """Whether the right layer was found; None where the fault has none."""
        if self.animal.layer is None or self.finding is None:
            return None
        return (
            self.finding.location is not None and self.finding.location.layer == self.animal.layer
        )


@lru_cache(maxsize=2)
def twin(kind: str) -> Subject:
    return healthy(kind)


@lru_cache(maxsize=256)
def twin_finding(kind: str, probe: str) -> Finding:
    return finding_of(twin(kind), registry.load(probe))


def examined(animal: Animal) -> Seen:
    """The animal as a stranger would meet it: a subject that has never been asked anything while it
    was healthy.
    """
    before = {probe: twin_finding(animal.kind, probe) for probe in animal.probes}
    model = twin(animal.kind)
    diagnoser = Diagnoser()
    with animal.injected(model):
        sick = Subject.of(model.model, animal.name, settings=model.settings, dtype=model.dtype_name)
        for probe in animal.probes:
            found = finding_of(sick, registry.load(probe))
            if _caught(found, before[probe]):
                return Seen(animal, diagnoser(sick, found))
    return Seen(animal, None)


def _caught(found: Finding, healthy_one: Finding) -> bool:
    known = {case.name: case for case in healthy_one.cases}
    return found.verdict in (Verdict.FAIL, Verdict.WARN) and any(
        noticed(case, known.get(case.name)) for case in found.cases
    )
