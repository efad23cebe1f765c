"""Values that a kernel gets, against what the layer's projection returned."""

from __future__ import annotations

import pytest
from conftest import tiny_llama

from attncheck.core.measurement import Measurement, verdict_of
from attncheck.core.verdict import Verdict
from attncheck.judge.heads import projection_cases
from attncheck.model.subject import Subject
from attncheck.run.random_faults.inject import Injector
from attncheck.run.random_faults.parts import parse
from attncheck.run.random_faults.sites import sites_of

NAME = "values of 3 layers against their projection"


def _case(subject: Subject) -> Measurement:
    return next(each for each in projection_cases(subject) if each.name == NAME)


def _with(subject: Subject, fault: str) -> Measurement:
    """The case with a composed fault."""
    with Injector(sites_of(subject), parse(fault)).injected():
        return _case(subject)


@pytest.fixture(scope="module")
def subject() -> Subject:
    return Subject.of(tiny_llama(num_hidden_layers=3), "llama", dtype="float64")


def test_healthy_values_are_those_of_their_projection(subject: Subject) -> None:
    found = _case(subject)
    assert verdict_of(found) is Verdict.PASS
    assert found.positions > 0


def test_values_times_one_number_throughout_may_be_meant(subject: Subject) -> None:
    assert verdict_of(_with(subject, "what=values,how=scale:1.25")) is Verdict.PASS


def test_a_factor_in_one_layer_is_named_with_layer_and_heads(subject: Subject) -> None:
    found = _with(subject, "what=values,how=scale:1.25,at=model.layers.1.self_attn")
    assert verdict_of(found) is Verdict.FAIL
    assert found.note == (
        "model.layers.1.self_attn: values are those of `v_proj` times 1.25, unlike most"
    )
    (part,) = found.cause.parts
    assert (part.what, part.how, part.layers) == ("values", "scaled", (1,))
    assert part.amount == pytest.approx(1.25)


def test_values_of_other_tokens_are_named_in_every_layer(subject: Subject) -> None:
    found = _with(subject, "what=values,how=slot:1")
    assert verdict_of(found) is Verdict.FAIL
    assert found.note == "model.layers.0.self_attn: values are those of the token 1 before"
    (part,) = found.cause.parts
    assert (part.how, part.amount) == ("other token", -1.0)
