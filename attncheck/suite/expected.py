"""Expected failures: which jobs an entry speaks of, and what they make of a finding."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import date
from fnmatch import fnmatchcase

from attncheck.errors import SuiteError, unknown
from attncheck.finding import Finding, Known, Verdict, verdict_of
from attncheck.suite.load import Part
from attncheck.suite.matrix import check_names, matches
from attncheck.suite.plan import ExpectedFailure, Job
from attncheck.suite.schema import ExpectedEntry
from attncheck.suite.source import Place


def with_expected(parts: tuple[Part, ...], jobs: list[Job]) -> list[Job]:
    """Hand every expected failure to the jobs that it speaks of; one that speaks of none is a complaint."""
    for part in parts:
        for index, entry in enumerate(part.suite.expected_failures):
            place: Place = ("expected_failures", index)
            check_names(part, (*place, "settings"), entry.settings)
            concerned = [job for job in jobs if _concerns(entry, job)]
            if not concerned:
                raise _pointless(part, place, entry, jobs)
            expected = _expected(entry, part.source.where(place))
            jobs = [replace(job, expected=(*job.expected, expected)) if job in concerned else job for job in jobs]
    return jobs


def _concerns(entry: ExpectedEntry, job: Job) -> bool:
    named = any(fnmatchcase(name, entry.probe) for name, _ in job.probes)
    return named and fnmatchcase(job.target, entry.model) and matches(vars(job.settings), entry.settings)


def _pointless(part: Part, place: Place, entry: ExpectedEntry, jobs: list[Job]) -> SuiteError:
    targets = {job.target for job in jobs}
    if not any(fnmatchcase(target, entry.model) for target in targets):
        return part.source.error((*place, "model"), unknown("model of this suite", entry.model, targets))
    probes = {name for job in jobs if fnmatchcase(job.target, entry.model) for name, _ in job.probes}
    if not any(fnmatchcase(name, entry.probe) for name in probes):
        return part.source.error((*place, "probe"), unknown("probe of this model", entry.probe, probes))
    return part.source.error((*place, "settings"), "no job of this suite has these settings")


def _expected(entry: ExpectedEntry, where: str) -> ExpectedFailure:
    return ExpectedFailure(
        probe=entry.probe,
        case=entry.case,
        verdicts=frozenset(entry.verdict),
        reason=entry.reason,
        link=entry.link,
        expires=entry.expires,
        where=where,
    )


def settle(finding: Finding, expected: Iterable[ExpectedFailure], today: date) -> tuple[Finding, tuple[str, ...]]:
    """A finding held against what is expected of it, with what there is to say about the entries.

    It is known when every case of its verdict is covered by an entry that still holds. An entry whose cases all pass and an
    entry that has expired are reported.
    """
    entries = [entry for entry in expected if fnmatchcase(finding.probe, entry.probe)]
    if finding.verdict is Verdict.SKIP or not entries:
        return finding, ()
    used = [entry for entry in entries if _broken_under(finding, entry)]
    notes = [_holds_again(finding, entry) for entry in entries if _passes_under(finding, entry)]
    notes += [_expired(finding, entry) for entry in used if entry.expired(today)]
    valid = [entry for entry in used if not entry.expired(today) and finding.verdict in entry.verdicts]
    if valid and all(any(entry.covers(finding.probe, name) for entry in valid) for name in _broken(finding)):
        finding = replace(finding, known=_known(valid))
    return finding, tuple(notes)


def _broken(finding: Finding) -> list[str]:
    """The cases that make the verdict; a crash or a missed control has none and counts under an empty name."""
    return [case.name for case in finding.cases if verdict_of(case) is finding.verdict] or [""]


def _broken_under(finding: Finding, entry: ExpectedFailure) -> bool:
    if finding.verdict is Verdict.PASS:
        return False
    return any(entry.covers(finding.probe, name) for name in _broken(finding))


def _passes_under(finding: Finding, entry: ExpectedFailure) -> bool:
    """Whether everything that an entry speaks of was judged and holds."""
    cases = [case for case in finding.cases if case.judged and entry.covers(finding.probe, case.name)]
    if not cases or finding.verdict in (Verdict.ERROR, Verdict.VACUOUS):
        return finding.verdict is Verdict.PASS and not cases and not finding.cases
    return all(verdict_of(case) is Verdict.PASS for case in cases)


def _holds_again(finding: Finding, entry: ExpectedFailure) -> str:
    what = f"{finding.probe} ({entry.case})" if entry.case != "*" else finding.probe
    return f"{what} was expected to fail and passes: remove the entry at {entry.where} ({entry.reason})"


def _expired(finding: Finding, entry: ExpectedFailure) -> str:
    return f"{finding.probe} was expected to fail until {entry.expires}: the entry at {entry.where} has expired ({entry.reason})"


def _known(entries: list[ExpectedFailure]) -> Known:
    first = entries[0]
    return Known(
        by="suite",
        reason="; ".join(dict.fromkeys(entry.reason for entry in entries)),
        link=first.link,
        expires=first.expires.isoformat() if first.expires else "",
    )
