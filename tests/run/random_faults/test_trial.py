"""A random fault is tried: thrown away where nothing shows, else caught, and judged by its parts."""

from __future__ import annotations

import pytest
from probing import loaded

from attncheck.core import registry
from attncheck.run.random_faults.parts import parse
from attncheck.run.random_faults.trial import Trials


@pytest.fixture(scope="module")
def trials() -> Trials:
    return Trials(loaded("builtin:gqa"), [registry.load("decode-paths")])


def test_what_moves_no_logits_is_thrown_away(trials: Trials) -> None:
    trial = trials.of(parse("what=positions,how=offset:1,when=padded,tokens=90-"))
    assert trial.reason == "it moves no logits beyond rounding"
    assert not trial.caught


def test_a_lost_slot_is_caught_named_and_placed(trials: Trials) -> None:
    trial = trials.of(parse("what=positions,how=restart,when=cached"))
    outcome = (trial.caught, trial.explained, trial.placed, trial.wrong)
    assert outcome == (True, True, True, False)
    assert trial.said[0]["probe"] == "decode-paths"
    assert trial.said[0]["fault"] == "position-restart"


def test_what_no_probe_looks_at_is_a_miss(trials: Trials) -> None:
    trial = trials.of(parse("what=cells,how=past,when=padded"))
    assert trial.moved > 0
    assert (trial.caught, trial.explained, trial.placed) == (False, False, False)


def test_a_numbered_trial_is_the_same_again(trials: Trials) -> None:
    first, again = trials.numbered(3), trials.numbered(3)
    assert first.fault is not None
    assert (first.fault, first.moved, first.caught) == (again.fault, again.moved, again.caught)
