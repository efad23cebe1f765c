"""Expected failures: which jobs an entry of a suite speaks of."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase

from attncheck.core.errors import SuiteError, unknown
from attncheck.suite.load import Part
from attncheck.suite.matrix import check_names, matches
from attncheck.suite.plan import ExpectedFailure, Job
from attncheck.suite.schema import ExpectedEntry
from attncheck.suite.source import Place


def with_expected(parts: tuple[Part, ...], jobs: list[Job]) -> list[Job]:
    """Hand every expected failure to the jobs that it speaks of; one that speaks of none is a
    complaint.
    """
    for part in parts:
        for index, entry in enumerate(part.suite.expected_failures):
            place: Place = ("expected_failures", index)
            check_names(part, (*place, "settings"), entry.settings)
            concerned = [job for job in jobs if _concerns(entry, job)]
            if not concerned:
                raise _pointless(part, place, entry, jobs)
            expected = _expected(entry, part.source.where(place))
            jobs = [
                replace(job, expected=(*job.expected, expected)) if job in concerned else job
                for job in jobs
            ]
    return jobs


def _concerns(entry: ExpectedEntry, job: Job) -> bool:
    named = any(fnmatchcase(name, entry.probe) for name, _ in job.probes)
    return (
        named
        and fnmatchcase(job.target, entry.model)
        and matches(vars(job.settings), entry.settings)
    )


def _pointless(part: Part, place: Place, entry: ExpectedEntry, jobs: list[Job]) -> SuiteError:
    targets = {job.target for job in jobs}
    if not any(fnmatchcase(target, entry.model) for target in targets):
        return part.source.error(
            (*place, "model"), unknown("model of this suite", entry.model, targets)
        )
    probes = {
        name for job in jobs if fnmatchcase(job.target, entry.model) for name, _ in job.probes
    }
    if not any(fnmatchcase(name, entry.probe) for name in probes):
        return part.source.error(
            (*place, "probe"), unknown("probe of this model", entry.probe, probes)
        )
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
