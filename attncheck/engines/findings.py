"""Findings about engines: the usual ruling over cases, with the controls of this package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from attncheck.core.finding import Control, Evidence, Finding
from attncheck.core.measurement import Measurement
from attncheck.core.ruling import judge_cases
from attncheck.core.verdict import Verdict


def engine_finding(
    name: str, cases: Sequence[Measurement], controls: Sequence[Control | None] | None = ()
) -> Finding:
    """The finding of some cases; a control that was missed makes a pass vacuous, as does one that
    could not be injected (None). Without `controls` (None) a pass stands by itself.
    """
    ruling = judge_cases(Evidence(measurements=tuple(cases)))
    found = tuple(each for each in controls or () if each is not None)
    finding = Finding(
        probe=name,
        verdict=ruling.verdict,
        summary=ruling.summary,
        cases=tuple(cases),
        controls=found,
        skip_reason=ruling.summary if ruling.verdict is Verdict.SKIP else None,
    )
    if ruling.verdict is not Verdict.PASS:
        return finding
    missed = [each.fault for each in found if not each.detected]
    if missed:
        words = f"with {', '.join(missed)} injected the check passes as well"
        return finding.with_verdict(Verdict.VACUOUS, words)
    if controls is not None and not found:
        reason = "no fault could be injected that would have failed it"
        missing = replace(finding, controls_missing=reason)
        return missing.with_verdict(Verdict.VACUOUS, reason)
    return finding
