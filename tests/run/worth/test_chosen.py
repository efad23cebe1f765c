"""The order of worth that stands in the package: it names questions that exist, and the chosen ones
catch what they must.
"""

from __future__ import annotations

from attncheck.core import registry
from attncheck.core.choice import Choice, choosing
from attncheck.core.errors import Unsupported
from attncheck.core.extent import RunExtent
from attncheck.core.settings import Settings
from attncheck.core.verdict import Verdict
from attncheck.run.examining import usual_examination
from attncheck.run.measuring import measured_cases
from attncheck.run.runner import ProbeFinished
from attncheck.run.worth.chosen import chosen
from attncheck.run.worth.cover import SHARE
from attncheck.targets.load import load

MOST = 120
"""Forwards of `--quick` on the default model."""


def test_the_chosen_questions_catch_what_they_must() -> None:
    plan = chosen()
    taken = {place for place, each in enumerate(plan.order) if each.chosen}
    caught = [bool(taken.intersection(places)) for places in plan.caught.values()]
    assert len(caught) >= 90
    assert sum(caught) >= SHARE * len(caught)


def test_every_chosen_question_exists() -> None:
    subject, plan = load("builtin:gqa", Settings()), chosen()
    for name in plan.controls:
        choice, probe = Choice(lambda key: False), registry.load(name)
        wanted = {each.question for each in plan.order if each.probe == name and each.chosen}
        with choosing(choice):
            try:
                assert not [*measured_cases(probe, subject)] or name == "reference"
            except Unsupported as reason:
                raise AssertionError(name) from reason
        assert wanted <= set(choice.left.values()), name
        assert set(plan.controls[name].values()) <= wanted


def test_quick_passes_on_the_default_model_for_few_forwards() -> None:
    subject = load("builtin:gqa", Settings())
    probes = [registry.load(name) for name in registry.select()]
    events = usual_examination()(subject, probes, RunExtent(quick=True))
    found = [event.finding for event in events if isinstance(event, ProbeFinished)]
    assert len(found) == len(probes)
    assert {each.verdict for each in found} == {Verdict.PASS, Verdict.SKIP}
    asked = [each for each in found if each.verdict is Verdict.PASS]
    assert all(each.controls and each.controls[0].detected for each in asked)
    assert subject.loaded.forwards <= MOST
