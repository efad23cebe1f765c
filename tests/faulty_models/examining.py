"""Run on a faulty model the probes that should notice its fault, and diagnose what they find."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from attncheck.core import registry
from attncheck.core.finding import Finding
from attncheck.core.verdict import Verdict
from attncheck.diagnosis.diagnose import Diagnoser
from attncheck.model.subject import Subject
from attncheck.run.controls import noticed
from attncheck.run.runner import finding_of
from attncheck.run.selftest import names
from faulty_models.models import FaultyModel, healthy


@dataclass(frozen=True)
class Examined:
    """The finding that caught a faulty model, diagnosed; None where no probe did."""

    model: FaultyModel
    finding: Finding | None

    @property
    def caught(self) -> bool:
        return self.finding is not None

    @property
    def named(self) -> bool:
        return self.finding is not None and names(self.model.fault, self.finding.diagnosis)

    @property
    def misnamed(self) -> bool:
        diagnosis = self.finding.diagnosis if self.finding else None
        return diagnosis is not None and diagnosis.how == "reproduced" and not self.named

    @property
    def located(self) -> bool | None:
        """Whether the right layer was found; None where the fault has none."""
        if self.model.layer is None or self.finding is None:
            return None
        return self.finding.location is not None and self.finding.location.layer == self.model.layer


@lru_cache(maxsize=2)
def healthy_model(kind: str) -> Subject:
    return healthy(kind)


@lru_cache(maxsize=256)
def healthy_finding(kind: str, probe: str) -> Finding:
    return finding_of(healthy_model(kind), registry.load(probe))


def examined(faulty: FaultyModel) -> Examined:
    """A subject of its own is made for the faulty model: nothing of the healthy one is remembered."""
    before = {probe: healthy_finding(faulty.kind, probe) for probe in faulty.probes}
    model = healthy_model(faulty.kind)
    diagnoser = Diagnoser()
    with faulty.injected(model):
        broken = Subject.of(
            model.model, faulty.name, settings=model.settings, dtype=model.dtype_name
        )
        for probe in faulty.probes:
            found = finding_of(broken, registry.load(probe))
            if _caught(found, before[probe]):
                return Examined(faulty, diagnoser(broken, found))
    return Examined(faulty, None)


def _caught(found: Finding, healthy_one: Finding) -> bool:
    known = {case.name: case for case in healthy_one.cases}
    return found.verdict in (Verdict.FAIL, Verdict.WARN) and any(
        noticed(case, known.get(case.name)) for case in found.cases
    )
