"""A run that asks the chosen cases, or what fits in a time: nothing is left out in silence, and
nothing passes without a control.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from attncheck.core.extent import RunExtent
from attncheck.core.finding import Finding
from attncheck.core.skips import questions
from attncheck.core.verdict import Verdict
from attncheck.model.subject import Subject
from attncheck.probing import ForwardSpec, Measurement, Probe, Unsupported, attempt
from attncheck.run.runner import Backing, Event, ProbeFinished, run_probes
from attncheck.run.worth import limited
from attncheck.run.worth.chosen import Chosen
from attncheck.run.worth.cover import Ranked
from attncheck.run.worth.limited import Limited
from tests.conftest import tiny_llama

FAULT = "causal-mask-missing"


@dataclass(frozen=True, kw_only=True)
class Halves(Probe):
    """Compares a row in chunks with the whole row: `last` looks at logits no mask can move."""

    name = "halves"
    title = "halves"
    controls = (FAULT,)
    lacks: tuple[str, ...] = ()
    off: float = 0.0
    asked: list[str] = field(default_factory=list, compare=False)

    def measure(self, subject: Subject) -> Iterator[Measurement]:
        """Four questions."""
        for name in ("first", "last", "third", "fourth"):
            yield attempt(name, self._case, subject, name)

    def _case(self, subject: Subject, name: str) -> Measurement:
        if name in self.lacks:
            raise Unsupported("the model has no such call")
        self.asked.append(name)
        row = subject.inputs.row
        changed = ForwardSpec((subject.inputs.other(row, len(row) - 1, len(row)),))
        whole = ForwardSpec((row,))
        usual_BTV, got_BTV = subject.logits(whole), subject.logits(changed) + self.off
        if name == "last":  # nothing can move it
            return subject.compare(name, usual_BTV[:, -1:], usual_BTV[:, -1:])
        return subject.compare(name, got_BTV[:, :-1], usual_BTV[:, :-1])


@dataclass(frozen=True, kw_only=True)
class Other(Halves):
    """Another probe with the same questions."""

    name = "other"


def plan(*chosen: tuple[str, str]) -> Chosen:
    order = [Ranked(*each, 1, 1, 1, 1, chosen=True) for each in chosen]
    rest = [Ranked("halves", "third", 0, 1, 1, 1), Ranked("halves", "first", 0, 1, 1, 1)]
    return Chosen(tuple(order + [each for each in rest if each.asked not in chosen]), {})


def ran(plan: Chosen, extent: RunExtent, *probes: Probe) -> dict[str, Finding]:
    subject = Subject.of(tiny_llama(), dtype="float64")

    def one(probe: Probe, backing: Backing) -> Iterator[Event]:
        return run_probes(subject, [probe], backing=backing)

    events = Limited(one, extent, plan).examine(subject, probes)
    return {e.finding.probe: e.finding for e in events if isinstance(e, ProbeFinished)}


def test_quick_asks_the_chosen_questions_and_says_what_is_left() -> None:
    found = ran(plan(("halves", "third")), RunExtent(quick=True), Halves(), Other())
    halves, other = found["halves"], found["other"]
    assert (halves.verdict, [case.name for case in halves.cases]) == (Verdict.PASS, ["third"])
    assert halves.left == ("first", "last", "fourth")
    assert [(each.fault, each.detected) for each in halves.controls] == [(FAULT, True)]
    assert (other.verdict, other.skip_reason) == (Verdict.SKIP, "left out by --quick")
    assert questions(found.values()).reasons == {"left-out": 4}


def test_a_model_without_the_chosen_question_is_asked_the_next_ones() -> None:
    halves = Halves(lacks=("third",))
    found = ran(plan(("halves", "third")), RunExtent(quick=True), halves)["halves"]
    assert found.verdict is Verdict.PASS
    assert set(halves.asked) == {"first"}
    assert found.left == ("last", "fourth")


def test_questions_that_miss_their_control_do_not_pass_alone() -> None:
    halves = Halves()
    found = ran(plan(("halves", "last")), RunExtent(quick=True), halves)["halves"]
    assert found.verdict is Verdict.PASS
    assert found.controls[0].detected
    assert "third" in halves.asked
    assert found.left == ("fourth",)


def test_a_control_that_only_other_models_show_is_not_held_against_this_one() -> None:
    others = replace(plan(("halves", "third")), controls={"halves": {"cache-crop": "third"}})
    halves = Halves()
    found = ran(others, RunExtent(quick=True), halves)["halves"]
    assert [(each.fault, each.detected) for each in found.controls] == [(FAULT, True)]
    assert set(halves.asked) == {"third"}


def test_a_named_probe_that_is_not_chosen_is_asked_its_best_question() -> None:
    other = Other()
    order = (Ranked("other", "first", 0, 1, 1, 1),)
    found = ran(Chosen(order, {}), RunExtent(quick=True), other)["other"]
    assert found.verdict is Verdict.PASS
    assert set(other.asked) == {"first"}


def test_within_a_time_a_failure_is_told_first_and_the_rest_is_asked() -> None:
    failing = Other(off=1.0)
    found = ran(
        plan(("halves", "third"), ("other", "first")), RunExtent(seconds=600.0), Halves(), failing
    )
    assert [*found] == ["other", "halves"]
    assert found["other"].verdict is Verdict.FAIL
    assert found["other"].left
    whole = found["halves"]
    assert (whole.verdict, whole.left, len(whole.controls)) == (Verdict.PASS, (), 1)


def test_what_does_not_fit_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limited.Clock, "fits", lambda clock, forwards: False)
    found = ran(plan(("halves", "third")), RunExtent(seconds=1.0), Halves(), Other())
    assert {each.verdict for each in found.values()} == {Verdict.SKIP}
    assert {each.skip_reason for each in found.values()} == {"left out by --budget 1s"}


def test_a_pass_keeps_its_control_when_the_time_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([True])
    monkeypatch.setattr(limited.Clock, "fits", lambda clock, forwards: next(answers, False))
    found = ran(plan(("halves", "third")), RunExtent(seconds=1.0), Halves())["halves"]
    assert (found.verdict, found.controls[0].detected) == (Verdict.PASS, True)
    assert found.left == ("first", "last", "fourth")
