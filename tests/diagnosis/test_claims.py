"""What a failing case says itself stands where it is proven or plain calls are right; it is a guess
where plain calls fail as well.
"""

from __future__ import annotations

from dataclasses import replace

from probing import finding, loaded

from attncheck.core.divergence import Divergence
from attncheck.core.finding import Diagnosis, Finding, Location
from attncheck.core.measurement import AtMost, Cause, Comparison, Rerun, following
from attncheck.core.observed_part import ObservedPart
from attncheck.core.verdict import Verdict
from attncheck.diagnosis.claims import (
    as_measured,
    contradicted,
    is_a_guess,
    named_by_the_probe,
    rank,
    with_equals,
)
from attncheck.diagnosis.diagnose import diagnose
from attncheck.diagnosis.failure import failing
from attncheck.diagnosis.measured import TAKEN_OVER
from attncheck.model.forward_spec import ForwardSpec
from attncheck.run.random_faults.inject import Injector
from attncheck.run.random_faults.parts import parse
from attncheck.run.random_faults.sites import sites_of

LAYER = "model.layers.2.self_attn"


def named(residual: float | None, location: Location | None) -> Finding:
    found = Diagnosis(fault="kv-groups-tiled", how="reproduced", residual=residual)
    return Finding(probe="one", verdict=Verdict.FAIL, diagnosis=found, location=location)


def test_a_claim_without_number_and_place_is_a_guess() -> None:
    assert is_a_guess(named(None, None))
    assert not is_a_guess(named(0.0, None))
    assert not is_a_guess(named(None, Location(module=LAYER)))
    assert not is_a_guess(Finding(probe="one", verdict=Verdict.WARN))


def test_what_is_known_to_differ_says_more_than_a_repair() -> None:
    keys = ObservedPart(what="keys", how="another function")
    taken = Diagnosis(fault="", how="unexplained", parts=(keys,))
    repaired = Diagnosis(fault="no cache", how="repaired", parts=(keys,))
    unexplained = Diagnosis(fault="", how="unexplained")
    assert sorted((unexplained, None, repaired, taken), key=rank) == [
        taken,
        repaired,
        unexplained,
        None,
    ]


def test_a_plain_call_with_a_fault_elsewhere_does_not_speak_for_what_a_case_shows_whole() -> None:
    def found(layer: int, sentence: str) -> Finding:
        told = Diagnosis(fault="", how="unexplained", sentence=sentence)
        return Finding(
            probe="one",
            verdict=Verdict.FAIL,
            diagnosis=told,
            location=Location(module=f"layers.{layer}", layer=layer),
        )

    shown, plain = found(1, f"Keys differ. {TAKEN_OVER}."), found(0, "States are lost.")
    assert contradicted(plain, shown)
    assert not contradicted(found(1, "States are lost."), shown)
    assert not contradicted(plain, found(1, "Keys differ."))


def test_a_case_that_follows_from_another_probe_names_nothing_and_is_searched_last() -> None:
    spec, cause = ForwardSpec(((1, 2),)), Cause("new-padding-visible")
    wrong = Divergence(max_abs=1.0, positions=2)
    claim = Comparison("claim", wrong, 1e-5, cause=cause, rerun=Rerun(spec, spec))
    other = Comparison("other", wrong, 1e-5, rerun=Rerun(spec, spec))
    found = Finding(probe="padding", verdict=Verdict.FAIL, cases=(claim, other))
    by_claim = named_by_the_probe(found)
    assert by_claim is not None
    assert by_claim.diagnosis is not None
    assert by_claim.diagnosis.fault == cause.fault
    follows = replace(found, cases=(following(claim, "decode-paths"), other))
    assert named_by_the_probe(follows) is None
    assert [case.name for case in failing(follows)] == ["other", "claim"]


def test_a_special_call_is_not_blamed_for_what_plain_calls_do() -> None:
    subject = loaded("builtin:gqa")
    text = f"what=keys+values,how=round:8,at={LAYER},heads=0,rows=1,when=chunk"
    with Injector(sites_of(subject), parse(text)).injected():
        found = diagnose(subject, finding(subject, "padding"))
    assert found.diagnosis is not None
    assert found.diagnosis.fault == "cache-low-precision"
    assert {part.layers for part in found.diagnosis.parts} == {(2,)}
    assert found.location is not None
    assert found.location.module == LAYER


def measured_at(layer: int, place: int) -> Finding:
    """A finding whose case measured one layer and whose search found another place."""
    module, other = (f"model.layers.{number}.self_attn" for number in (layer, place))
    part = ObservedPart(what="values", how="scaled", layers=(layer,))
    case = AtMost(
        "values", 1.0, "heads", note="of others", cause=Cause(module=module, parts=(part,))
    )
    return Finding(
        probe="reference",
        verdict=Verdict.FAIL,
        cases=(case,),
        diagnosis=Diagnosis(fault="`eager` attention", how="repaired", family="softmax-scale"),
        location=Location(module=other, layer=place),
    )


def test_a_search_that_ends_in_another_layer_than_the_case_contradicts_it() -> None:
    assert contradicted(measured_at(2, 1))
    assert not contradicted(measured_at(2, 2))


def test_what_a_case_measured_in_parts_is_better_than_a_repair() -> None:
    found = as_measured(measured_at(2, 2)).diagnosis
    assert found is not None
    assert (found.how, found.fault, found.sentence) == ("measured", "", "Values: of others.")
    assert [part.layers for part in found.parts] == [(2,)]


def test_what_no_call_tells_apart_is_said() -> None:
    found = with_equals(Diagnosis(fault="a", how="reproduced", advice="Do."), ("b", "c"))
    assert found.advice == "Do. No call that was tried tells it from `b` or `c`."
    assert with_equals(found, ()) is found
