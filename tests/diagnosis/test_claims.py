"""What a failing case says itself stands where it is proven or plain calls are right; it is a guess
where plain calls fail as well.
"""

from __future__ import annotations

from dataclasses import replace

from probing import finding, loaded

from attncheck.core.divergence import Divergence
from attncheck.core.finding import Diagnosis, Finding, Location
from attncheck.core.measurement import Cause, Comparison, Rerun, following
from attncheck.core.verdict import Verdict
from attncheck.diagnosis.claims import is_a_guess, named_by_the_probe
from attncheck.diagnosis.diagnose import diagnose
from attncheck.diagnosis.failure import failing
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
