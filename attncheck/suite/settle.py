"""Expected failures: what they make of a finding."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import date
from fnmatch import fnmatchcase

from attncheck.core.finding import Finding, Known, Verdict, verdict_of
from attncheck.suite.plan import ExpectedFailure


def settle(
    finding: Finding, expected: Iterable[ExpectedFailure], today: date
) -> tuple[Finding, tuple[str, ...]]:
    """A finding held against what is expected of it, with what there is to say about the entries.

    It is known when every case of its verdict is covered by an entry that still holds. An entry
    whose cases all pass and an entry that has expired are reported.
    """
    entries = [entry for entry in expected if fnmatchcase(finding.probe, entry.probe)]
    if finding.verdict is Verdict.SKIP or not entries:
        return finding, ()
    used = [entry for entry in entries if _broken_under(finding, entry)]
    notes = [_holds_again(finding, entry) for entry in entries if _passes_under(finding, entry)]
    notes += [_expired(finding, entry) for entry in used if entry.expired(today)]
    valid = [
        entry for entry in used if not entry.expired(today) and finding.verdict in entry.verdicts
    ]
    if valid and all(
        any(entry.covers(finding.probe, name) for entry in valid) for name in _broken(finding)
    ):
        finding = replace(finding, known=_known(valid))
    return finding, tuple(notes)


def _broken(finding: Finding) -> list[str]:
    """The cases that make the verdict; a crash or a missed control has none and counts under an
    empty name.
    """
    return [case.name for case in finding.cases if verdict_of(case) is finding.verdict] or [""]


def _broken_under(finding: Finding, entry: ExpectedFailure) -> bool:
    if finding.verdict is Verdict.PASS:
        return False
    return any(entry.covers(finding.probe, name) for name in _broken(finding))


def _passes_under(finding: Finding, entry: ExpectedFailure) -> bool:
    """Whether everything that an entry speaks of was judged and holds."""
    cases = [
        case for case in finding.cases if case.judged and entry.covers(finding.probe, case.name)
    ]
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
