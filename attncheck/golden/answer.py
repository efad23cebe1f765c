"""The answer of the gate: a word, a sentence, and a finding like that of a probe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from attncheck.core.finding import Control, Finding, Location
from attncheck.core.measurement import AtMost, BrokenCall, Measurement, skipped
from attncheck.core.verdict import Verdict
from attncheck.golden.conditions import only_where
from attncheck.golden.file import Golden
from attncheck.golden.holding import HeldCall
from attncheck.report.numbers import number

PROBE = "golden"
SHOWN = 3


@final
@dataclass(frozen=True, kw_only=True)
class GateAnswer:
    """All calls, the controls with the reason where there are none, and the weights that differ."""

    golden: Golden
    calls: tuple[HeldCall, ...]
    controls: tuple[Control, ...] = ()
    no_control: str = ""
    weights: tuple[str, ...] = ()
    source: str = ""

    @property
    def worst(self) -> HeldCall | None:
        """The call that differs and is placed best: the first in the highest precision."""
        wrong = [each for each in self.calls if each.held == "different"]
        return next((each for each in wrong if each.first), next(iter(wrong), None))

    @property
    def word(self) -> str:
        """IDENTICAL, ROUNDING or DIFFERENT; VACUOUS where the gate would not see a fault."""
        kinds = {each.held for each in self.calls}
        if "different" in kinds:
            return "DIFFERENT"
        missed = any(not each.detected for each in self.controls)
        if missed or not self.controls or not kinds - {"skipped"}:
            return "VACUOUS"
        return "ROUNDING" if "rounding" in kinds else "IDENTICAL"


def finding(answer: GateAnswer, seconds: float = 0.0) -> Finding:
    """The answer as the finding of a probe named `golden`."""
    verdicts = {"DIFFERENT": Verdict.FAIL, "VACUOUS": Verdict.VACUOUS}
    worst = answer.worst
    first = worst.first if worst else None
    compared = any(each.held != "skipped" for each in answer.calls)
    verdict = verdicts.get(answer.word, Verdict.PASS) if compared else Verdict.SKIP
    return Finding(
        probe=PROBE,
        verdict=verdict,
        seconds=seconds,
        summary=f"{answer.word}: {said(answer)}",
        cases=tuple(map(_case, answer.calls)),
        controls=answer.controls,
        controls_missing=answer.no_control,
        location=Location(
            module=first.module,
            layer=first.layer,
            query_position=worst.place[1] if worst and worst.place else first.positions[0],
            source=answer.source,
        )
        if first
        else None,
        skip_reason=None if compared else said(answer),
    )


def _case(found: HeldCall) -> Measurement:
    name = found.call.name
    if found.held == "skipped":
        return skipped(name, found.note)
    if found.times == float("inf"):
        return BrokenCall(name, note=found.note)
    note = found.note
    if found.first is not None:
        start, stop = found.first.positions
        note = "; ".join(
            filter(None, (note, f"{found.first.module}, positions {start}..{stop - 1}"))
        )
    return AtMost(name, found.times, "x rounding", limit=1.0, note=note)


def said(answer: GateAnswer) -> str:
    """The answer in a sentence or two."""
    compared = [each for each in answer.calls if each.held != "skipped"]
    wrong = [each for each in compared if each.held == "different"]
    if not compared:
        reasons = dict.fromkeys(each.note for each in answer.calls)
        return f"nothing could be compared: {'; '.join(reasons)}"
    if wrong:
        return _difference(answer, wrong, len(compared))
    if answer.word == "VACUOUS":
        missed = [each.case for each in answer.controls if not each.detected]
        what = (
            f"a lost head would not be seen in {', '.join(missed)}"
            if missed
            else (f"no fault could be injected: {answer.no_control}")
        )
        return f"{len(compared)} calls agree, but {what}"
    if answer.word == "IDENTICAL":
        return f"every logit of {len(compared)} calls is the same to the last bit"
    largest = max(compared, key=lambda each: each.times)
    return (
        f"{len(compared)} calls differ by at most {number(largest.times)} of what rounding "
        f"explains ({largest.call.name})"
    )


def _difference(answer: GateAnswer, wrong: Sequence[HeldCall], total: int) -> str:
    worst = answer.worst or wrong[0]
    where = only_where(answer.calls)
    how_many = "all" if len(wrong) == total else f"{len(wrong)} of {total}"
    text = f"{how_many} calls differ{f' ({where})' if where else ''}"
    first = worst.first
    if first is not None:
        start = worst.place[1] if worst.place else first.positions[0]
        text += (
            f", first in {first.module} by {number(100 * first.share)} % of its size, where "
            f"rounding explains {number(100 * first.explained)} % ({worst.call.name}, "
            f"position {start})"
        )
    elif worst.note:
        text += f": {worst.call.name}: {worst.note}"
    else:
        text += f": logits by {number(worst.largest)} ({worst.call.name})"
    if answer.weights:
        more = f" and {len(answer.weights) - SHOWN} more" if len(answer.weights) > SHOWN else ""
        text += f"; weights that are not the same: {', '.join(answer.weights[:SHOWN])}{more}"
    return text
