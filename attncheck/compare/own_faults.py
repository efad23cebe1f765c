"""Faults of one way of calling: plain forwards of two models agree, and in steps, in a batch or on
a cache one of them contradicts its own plain forward. The probe of that call names and places it.
"""

from __future__ import annotations

from collections.abc import Iterator

from attncheck.compare.calls import PLAIN
from attncheck.compare.divergence import RunComparison
from attncheck.compare.naming import NamedFault
from attncheck.core import registry
from attncheck.core.finding import Finding
from attncheck.core.verdict import Verdict
from attncheck.diagnosis.diagnose import Diagnoser
from attncheck.model.subject import Subject
from attncheck.run.runner import finding_of

PROBES = (
    ("static cache", "cache-kinds"),
    ("padded", "padding"),
    ("packed", "document-leakage"),
    ("packed", "position-reset"),
    ("batch", "batch-rows"),
    ("chunks", "decode-paths"),
    ("steps", "decode-paths"),
    ("one forward,", "implementations"),
    ("generate", "generate"),
)
"""Words in the name of a call, and the probe that asks it of one model."""


def own_faults(one: Subject, other: Subject, ways: list[str]) -> tuple[NamedFault, ...]:
    """What is wrong in the calls `ways`, by which two models differ whose plain forwards agree."""
    installed = registry.installed()
    names = dict.fromkeys(
        probe for way in ways for words, probe in PROBES if words in way and probe in installed
    )
    found = [fault for name in names for fault in _named(one, other, name)]
    return tuple({fault.name: fault for fault in reversed(found)}.values())[::-1]


def differing_calls(comparison: RunComparison) -> list[str]:
    """The calls that differ, where the plain forward does not."""
    wrong = [each.way for each in comparison.forwards if each.verdict == "different"]
    return [] if PLAIN in wrong else wrong


def _named(one: Subject, other: Subject, name: str) -> Iterator[NamedFault]:
    """The fault of the side that fails a probe which the other one passes."""
    for side, opposite, words in ((other, one, "right"), (one, other, "left")):
        finding = _finding(side, name)
        if finding.verdict is not Verdict.FAIL:
            continue
        if _finding(opposite, name).verdict is not Verdict.FAIL:
            yield _fault(finding, words)
        return


def _finding(subject: Subject, name: str) -> Finding:
    return finding_of(subject, registry.load(name), Diagnoser())


def _fault(finding: Finding, side: str) -> NamedFault:
    diagnosis, location = finding.diagnosis, finding.location
    named = diagnosis.fault if diagnosis else ""
    said = diagnosis.sentence if diagnosis and diagnosis.sentence else finding.summary
    where = f" ({location.module})" if location else ""
    fault = f"{named}: " if named else ""
    return NamedFault(
        name=named or finding.probe,
        sentence=f"{side} side, by `{finding.probe}`: {fault}{said.rstrip('.')}{where}",
        module=location.module if location else "",
        other_module=location.module if location else "",
        layer=location.layer if location else None,
        layers=(location.layer,) if location and location.layer is not None else (),
    )
