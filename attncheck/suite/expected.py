"""Expected failures: which jobs an entry of a suite applies to, and how it settles a finding."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import date
from fnmatch import fnmatchcase

from attncheck.core.errors import SuiteError, unknown
from attncheck.core.finding import Finding, KnownFinding
from attncheck.core.measurement import verdict_of
from attncheck.core.verdict import Verdict
from attncheck.suite.load import Part
from attncheck.suite.matrix import check_names, matches
from attncheck.suite.plan import ExpectedFailure, Job, matching
from attncheck.suite.schema import ExpectedEntry
from attncheck.suite.source import Place


def with_expected(parts: tuple[Part, ...], jobs: list[Job]) -> list[Job]:
    """Attach each expected failure to the jobs that it applies to.

    Raises:
        SuiteError: an entry applies to no job.
    """
    for part in parts:
        for index, entry in enumerate(part.suite.expected_failures):
            place: Place = ("expected_failures", index)
            check_names(part, (*place, "settings"), entry.settings)
            concerned = [job for job in jobs if _concerns(entry, job)]
            if not concerned:
                raise _unused(part, place, entry, jobs)
            expected = _failure(entry, part.source.where(place))
            jobs = [
                replace(job, expected=(*job.expected, expected)) if job in concerned else job
                for job in jobs
            ]
    return jobs


def _concerns(entry: ExpectedEntry, job: Job) -> bool:
    probes = matching(entry.probe, (name for name, _ in job.probes))
    settings = matches(vars(job.settings), entry.settings)
    return bool(probes) and fnmatchcase(job.target, entry.model) and settings


def _unused(part: Part, place: Place, entry: ExpectedEntry, jobs: list[Job]) -> SuiteError:
    models = [job for job in jobs if fnmatchcase(job.target, entry.model)]
    if not models:
        message = unknown("model of this suite", entry.model, {job.target for job in jobs})
        return part.error((*place, "model"), message)
    probes = {name for job in models for name, _ in job.probes}
    if not matching(entry.probe, probes):
        message = unknown("probe of this model", entry.probe, probes)
        return part.error((*place, "probe"), message)
    return part.error((*place, "settings"), "no job of this suite has these settings")


def _failure(entry: ExpectedEntry, where: str) -> ExpectedFailure:
    return ExpectedFailure(
        probe=entry.probe,
        case=entry.case,
        verdicts=frozenset(entry.verdict),
        reason=entry.reason,
        link=entry.link,
        expires=entry.expires,
        where=where,
    )


def settle(
    finding: Finding, expected: Iterable[ExpectedFailure], today: date
) -> tuple[Finding, tuple[str, ...]]:
    """A finding, marked as known if it is expected, and notes on the entries of the suite.

    A finding is known if entries that have not expired cover every case of its verdict. Entries
    whose cases all pass, and entries that have expired, give a note.
    """
    entries = [entry for entry in expected if fnmatchcase(finding.probe, entry.probe)]
    if finding.verdict is Verdict.SKIP or not entries:
        return finding, ()
    failing = _failing_cases(finding)
    used = [
        entry for entry in entries if any(entry.covers(finding.probe, name) for name in failing)
    ]
    notes = [_passes_again(finding, entry) for entry in entries if _passes(finding, entry)]
    notes += [_expired(finding, entry) for entry in used if entry.expired(today)]
    valid = [
        entry for entry in used if not entry.expired(today) and finding.verdict in entry.verdicts
    ]
    covered = [name for name in failing if any(e.covers(finding.probe, name) for e in valid)]
    if valid and covered == failing:
        finding = replace(finding, known=_known(valid))
    return finding, tuple(notes)


def _failing_cases(finding: Finding) -> list[str]:
    """The cases that make the verdict; a crash or a missed control counts under an empty name."""
    if finding.verdict is Verdict.PASS:
        return []
    return [case.name for case in finding.cases if verdict_of(case) is finding.verdict] or [""]


def _passes(finding: Finding, entry: ExpectedFailure) -> bool:
    """Whether every case that an entry covers was judged and passes."""
    cases = [
        case for case in finding.cases if case.judged and entry.covers(finding.probe, case.name)
    ]
    if not cases or finding.verdict in (Verdict.ERROR, Verdict.VACUOUS):
        return finding.verdict is Verdict.PASS and not cases and not finding.cases
    return all(verdict_of(case) is Verdict.PASS for case in cases)


def _passes_again(finding: Finding, entry: ExpectedFailure) -> str:
    what = f"{finding.probe} ({entry.case})" if entry.case != "*" else finding.probe
    return (
        f"{what} was expected to fail and passes: "
        f"remove the entry at {entry.where} ({entry.reason})"
    )


def _expired(finding: Finding, entry: ExpectedFailure) -> str:
    return (
        f"{finding.probe} was expected to fail until {entry.expires}: "
        f"the entry at {entry.where} has expired ({entry.reason})"
    )


def _known(entries: list[ExpectedFailure]) -> KnownFinding:
    first = entries[0]
    return KnownFinding(
        by="suite",
        reason="; ".join(dict.fromkeys(entry.reason for entry in entries)),
        link=first.link,
        expires=first.expires.isoformat() if first.expires else "",
    )
