"""The tool checked by itself: every fault of the catalogue planted in a healthy model, and what the
probes made of it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import final

from attncheck.core.errors import Unsupported
from attncheck.core.finding import Diagnosis, Finding, Location, Verdict
from attncheck.diagnosis.diagnose import Diagnoser
from attncheck.faults.catalogue import FAULTS
from attncheck.faults.engine.fault import Fault
from attncheck.model.subject import Subject
from attncheck.probing import Probe
from attncheck.run.runner import finding_of, noticed

SAME_FROM_OUTSIDE: dict[str, frozenset[str]] = {
    "generate-positions": frozenset({"position-offset"}),
    "position-ignores-padding": frozenset({"position-ids-ignored"}),
    "attention-mask-ignored": frozenset({"padding-visible"}),
    "padding-visible": frozenset({"attention-mask-ignored"}),
}
"""Faults whose planted form is, on some calls, the very same as another one."""


@final
@dataclass(frozen=True, kw_only=True)
class Caught:
    """What one probe made of one planted fault."""

    probe: str
    diagnosis: Diagnosis | None
    location: Location | None


@final
@dataclass(frozen=True, kw_only=True)
class Row:
    """One fault planted in one target. `reason` says why it could not be planted."""

    target: str
    fault: str
    caught: tuple[Caught, ...] = ()
    seconds: float = 0.0
    reason: str = ""

    @property
    def missed(self) -> bool:
        """Planted, and no probe noticed."""
        return not self.reason and not self.caught

    @property
    def told(self) -> Caught | None:
        """The finding that says most: one that names the fault, else any with a diagnosis, else the
        first.
        """
        named = [each for each in self.caught if names(self.fault, each.diagnosis)]
        explained = [
            each
            for each in self.caught
            if each.diagnosis is not None and each.diagnosis.how != "unexplained"
        ]
        return next(iter([*named, *explained, *self.caught]), None)

    @property
    def wrong(self) -> tuple[Caught, ...]:
        """Findings that are named after another fault."""
        told = [
            each
            for each in self.caught
            if each.diagnosis is not None and each.diagnosis.how == "reproduced"
        ]
        return tuple(each for each in told if not names(self.fault, each.diagnosis))

    @property
    def named(self) -> str:
        """`yes`, the other name that was given, the repair that healed it, or nothing."""
        told = self.told.diagnosis if self.told else None
        if told is None or told.how == "unexplained":
            return ""
        if names(self.fault, told):
            return "yes" if told.fault == self.fault else f"as {told.fault}"
        return f"healed by {told.fault}" if told.how == "repaired" else told.fault


def names(fault: str, diagnosis: Diagnosis | None) -> bool:
    """Whether a diagnosis names this fault, or one that is the same from outside."""
    if diagnosis is None or diagnosis.how != "reproduced":
        return False
    return diagnosis.fault == fault or diagnosis.fault in SAME_FROM_OUTSIDE.get(fault, frozenset())


@final
@dataclass
class Selftest:
    """Plants faults in one subject. `thorough` asks every probe even when one has caught the fault
    already.
    """

    subject: Subject
    probes: Sequence[Probe]
    thorough: bool = False
    healthy: dict[str, Finding] = field(default_factory=dict)

    def run(self, faults: Iterable[str] = tuple(FAULTS)) -> Iterator[Row]:
        """One row a fault, in the order of the catalogue."""
        for probe in self.probes:
            self.healthy[probe.name] = finding_of(self.subject, probe)
        for name in faults:
            yield self._row(FAULTS[name])

    def _row(self, fault: Fault) -> Row:
        started = time.perf_counter()
        row = Row(target=self.subject.name, fault=fault.name)
        try:
            with (
                fault.inject(self.subject),
                self.subject.passes.under(fault.name, fault.on_cache_only),
            ):
                caught = tuple(self._caught(fault))
        except Unsupported as reason:
            return replace(row, reason=str(reason))
        return replace(row, caught=caught, seconds=time.perf_counter() - started)

    def _caught(self, fault: Fault) -> Iterator[Caught]:
        diagnoser = Diagnoser()
        for probe in sorted(self.probes, key=lambda each: fault.name not in each.controls):
            found = finding_of(self.subject, probe)
            if not self._noticed(found):
                continue
            told = diagnoser(self.subject, found)
            yield Caught(probe=probe.name, diagnosis=told.diagnosis, location=told.location)
            if not self.thorough and names(fault.name, told.diagnosis):
                return

    def _noticed(self, found: Finding) -> bool:
        before = {case.name: case for case in self.healthy[found.probe].cases}
        if found.verdict not in (Verdict.FAIL, Verdict.WARN):
            return False
        return any(noticed(case, before.get(case.name)) for case in found.cases)


def coverage(rows: Sequence[Row], probes: Sequence[str], each: int | None = None) -> str:
    """The page `docs/coverage.md`: for each fault and target which probes catch it, and whether it
    was named and located.
    """
    limit = f" --each {each}" if each else ""
    targets = list(dict.fromkeys(row.target for row in rows))
    faults = list(dict.fromkeys(row.fault for row in rows))
    head = [
        "# What the probes catch",
        "",
        f"Written by `attncheck selftest {' '.join(targets)}{limit} --coverage docs/coverage.md`:",
        "every fault of the catalogue, planted in healthy models. A number is how many of the targets show it to the probe; a",
        "dot, none. `n/m`: named in n of the m targets that it was planted in.",
        "",
        _totals(rows),
        "",
        "| fault | " + " | ".join(probes) + " | caught | named | first module |",
        "|---" * (len(probes) + 4) + "|",
    ]
    return "\n".join(
        [
            *head,
            *(
                _line(fault, [row for row in rows if row.fault == fault], probes)
                for fault in faults
            ),
            "",
        ]
    )


def _totals(rows: Sequence[Row]) -> str:
    injected = [row for row in rows if not row.reason]
    found = [each for row in injected for each in row.caught]
    named = sum(names(row.fault, each.diagnosis) for row in injected for each in row.caught)
    wrong = sum(len(row.wrong) for row in injected)
    healed = sum(each.diagnosis is not None and each.diagnosis.how == "repaired" for each in found)
    return (
        f"{len(injected)} times planted, {sum(map(_is_caught, injected))} times caught, {sum(map(_is_named, injected))} times named "
        f"by a probe. Of the {len(found)} findings of single probes {named} name the fault, {wrong} name another one, {healed} "
        f"say what heals it, and {len(found) - named - wrong - healed} leave it unexplained."
    )


def _line(fault: str, rows: list[Row], probes: Sequence[str]) -> str:
    injected = [row for row in rows if not row.reason]
    if not injected:
        return f"| {fault} |" + " |" * len(probes) + " cannot be planted in these targets | | |"
    counts = [
        sum(any(each.probe == probe for each in row.caught) for row in injected) for probe in probes
    ]
    caught, named = (sum(map(spec, injected)) for spec in (_is_caught, _is_named))
    places = [row.told.location.module for row in injected if row.told and row.told.location]
    cells = [str(number) if number else "·" for number in counts]
    cells += [f"{caught}/{len(injected)}", f"{named}/{len(injected)}", places[0] if places else ""]
    return f"| {fault} | " + " | ".join(cells) + " |"


def _is_caught(row: Row) -> bool:
    return bool(row.caught)


def _is_named(row: Row) -> bool:
    return any(names(row.fault, each.diagnosis) for each in row.caught)
