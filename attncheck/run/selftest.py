"""The tool checks itself: faults injected in a healthy model, and what the probes made of each."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import final

from attncheck.core.errors import Unsupported
from attncheck.core.finding import Diagnosis, Finding, Location
from attncheck.core.verdict import Verdict
from attncheck.diagnosis.diagnose import Diagnoser
from attncheck.faults import registry
from attncheck.faults.engine.fault import Fault
from attncheck.model.subject import Subject
from attncheck.probing import Probe
from attncheck.run.controls import noticed
from attncheck.run.runner import finding_of


@final
@dataclass(frozen=True, kw_only=True)
class Caught:
    """What one probe made of one injected fault."""

    probe: str
    diagnosis: Diagnosis | None
    location: Location | None

    @property
    def reproduced(self) -> bool:
        """Whether the diagnosis names a fault that gives the same logits."""
        return self.diagnosis is not None and self.diagnosis.how == "reproduced"


@final
@dataclass(frozen=True, kw_only=True)
class Row:
    """One fault injected in one target, everywhere or in the smallest dose. `reason` says why it
    could not be injected.
    """

    target: str
    fault: str
    smallest: bool = False
    caught: tuple[Caught, ...] = ()
    seconds: float = 0.0
    reason: str = ""

    @property
    def missed(self) -> bool:
        """Injected, and no probe noticed."""
        return not self.reason and not self.caught

    @property
    def named_by(self) -> list[Caught]:
        """The findings that name this fault."""
        return [each for each in self.caught if names(self.fault, each.diagnosis)]

    @property
    def wrong(self) -> list[Caught]:
        """The findings that name another fault."""
        return [
            each
            for each in self.caught
            if each.reproduced and not names(self.fault, each.diagnosis)
        ]

    @property
    def most_telling(self) -> Caught | None:
        """The most telling finding: one that names the fault, else any diagnosis, else any."""
        explained = [
            each
            for each in self.caught
            if each.diagnosis is not None and each.diagnosis.how != "unexplained"
        ]
        return next(iter([*self.named_by, *explained, *self.caught]), None)

    @property
    def named(self) -> str:
        """`yes`, the other name that was given, the repair that fixed it, or nothing."""
        found = self.most_telling.diagnosis if self.most_telling else None
        if found is None or found.how == "unexplained":
            return ""
        if names(self.fault, found):
            return "yes" if found.fault == self.fault else f"as {found.fault}"
        return f"fixed by {found.fault}" if found.how == "repaired" else found.fault


def names(fault: str, diagnosis: Diagnosis | None) -> bool:
    """Whether a diagnosis names this fault, or one whose logits are the same on some calls."""
    if diagnosis is None or diagnosis.how != "reproduced":
        return False
    return diagnosis.fault in (fault, *registry.fault(fault).looks_like)


@final
@dataclass
class Selftest:
    """Injects faults in one subject. `thorough` runs every probe, caught already or not."""

    subject: Subject
    probes: Sequence[Probe]
    thorough: bool = False
    healthy: dict[str, Finding] = field(default_factory=dict)

    def run(self, faults: Iterable[str] | None = None) -> Iterator[Row]:
        """One row for each fault: of those that are named, else of all. Where every probe runs, a
        second row for its smallest dose.
        """
        for probe in self.probes:
            self.healthy[probe.name] = finding_of(self.subject, probe)
        for name in registry.names() if faults is None else faults:
            yield self._row(registry.fault(name))
            if self.thorough:
                yield self._row(registry.fault(name), smallest=True)

    def _row(self, fault: Fault, smallest: bool = False) -> Row:
        started = time.perf_counter()
        row = Row(target=self.subject.name, fault=fault.name, smallest=smallest)
        try:
            with (fault.injected_once if smallest else fault.injected)(self.subject):
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
            explained = diagnoser(self.subject, found)
            yield Caught(
                probe=probe.name, diagnosis=explained.diagnosis, location=explained.location
            )
            if not self.thorough and names(fault.name, explained.diagnosis):
                return

    def _noticed(self, found: Finding) -> bool:
        before = {case.name: case for case in self.healthy[found.probe].cases}
        if found.verdict not in (Verdict.FAIL, Verdict.WARN):
            return False
        return any(noticed(case, before.get(case.name)) for case in found.cases)


def coverage(rows: Sequence[Row], probes: Sequence[str], each: int | None = None) -> str:
    """The page `docs/coverage.md`: which probes catch each fault, and how often it is named."""
    limit = f" --each {each}" if each else ""
    targets = list(dict.fromkeys(row.target for row in rows))
    whole, least = ([row for row in rows if row.smallest is one] for one in (False, True))
    head = [
        "# What the probes catch",
        "",
        f"Written by `attncheck selftest {' '.join(targets)}{limit} --coverage docs/coverage.md`:",
        "every known fault, injected in healthy models. A number says in how many targets a probe",
        "caught it; a dot, in none. `n/m`: named in n of the m targets in which it was injected.",
        "",
        *_totals(whole),
        "",
        *_table(whole, probes),
    ]
    if any(not row.reason for row in least):
        head += [
            "",
            "## The smallest dose",
            "",
            "The same faults in one head of one layer at one position, or in one slot of a cache.",
            "Faults that change whole calls have no smaller dose and are left out.",
            "",
            *_totals(least),
            "",
            *_table([row for row in least if not row.reason], probes),
        ]
    return "\n".join([*head, ""])


def _table(rows: Sequence[Row], probes: Sequence[str]) -> list[str]:
    return [
        "| fault | " + " | ".join(probes) + " | caught | named | first module |",
        "|---" * (len(probes) + 4) + "|",
        *(
            _line(fault, [row for row in rows if row.fault == fault], probes)
            for fault in dict.fromkeys(row.fault for row in rows)
        ),
    ]


def _totals(rows: Sequence[Row]) -> list[str]:
    injected = [row for row in rows if not row.reason]
    found = [each for row in injected for each in row.caught]
    caught, named = map(sum, _outcomes(injected))
    naming = sum(len(row.named_by) for row in injected)
    wrong = sum(len(row.wrong) for row in injected)
    fixed = sum(each.diagnosis is not None and each.diagnosis.how == "repaired" for each in found)
    rest = len(found) - naming - wrong - fixed
    return [
        f"{len(injected)} times injected, {caught} times caught, {named} times named by a probe.",
        f"Of {len(found)} findings of single probes {naming} name the fault, {wrong} another one,",
        f"{fixed} a repair that fixes it, and {rest} leave it unexplained.",
    ]


def _outcomes(rows: Sequence[Row]) -> tuple[list[bool], list[bool]]:
    """Whether each fault was caught, and whether it was named."""
    return [bool(row.caught) for row in rows], [bool(row.named_by) for row in rows]


def _line(fault: str, rows: list[Row], probes: Sequence[str]) -> str:
    injected = [row for row in rows if not row.reason]
    if not injected:
        return f"| {fault} |" + " |" * len(probes) + " cannot be injected in these targets | | |"
    counts = [
        sum(any(each.probe == probe for each in row.caught) for row in injected) for probe in probes
    ]
    places = [
        row.most_telling.location.module
        for row in injected
        if row.most_telling and row.most_telling.location
    ]
    cells = [str(number) if number else "·" for number in counts]
    cells += [f"{sum(column)}/{len(injected)}" for column in _outcomes(injected)]
    return f"| {fault} | " + " | ".join([*cells, *places[:1]] if places else [*cells, ""]) + " |"
