"""Which fault reproduces a failure: of generation, of rotary tables, of two faults at once."""

from __future__ import annotations

import contextlib

import pytest
from diagnosing import explained, rotary
from probing import finding, loaded

from attncheck.core.finding import Diagnosis, Finding
from attncheck.diagnosis.failure import failing, open_case
from attncheck.diagnosis.reproduce import Search
from attncheck.faults.engine.hypothesis import Hypothesis
from attncheck.faults.engine.trusted import Trusted
from attncheck.faults.registry import fault, hypotheses
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.subject import Subject


def injected(target: str, probe: str, *names: str) -> Finding:
    subject = loaded(target)
    assert subject.budget.value  # rounding of the healthy forward comes first, as in a run
    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(fault(name).inject(subject))
        if names:
            stack.enter_context(subject.passes.under("+".join(names), on_cache_only=False))
        return explained(subject, probe)


def told(found: Finding) -> Diagnosis:
    assert found.diagnosis is not None
    return found.diagnosis


@pytest.mark.parametrize("probe", ["generate", "position-reset"])
@pytest.mark.parametrize("fault", ["generate-repeats-token", "logits-to-keep"])
def test_what_generate_feeds_and_keeps_is_named(fault: str, probe: str) -> None:
    found = told(injected("builtin:gqa", probe, fault))
    assert (found.fault, found.how) == (fault, "reproduced")
    assert found.residual is not None
    assert found.residual < 1e-12
    assert found.runner_up is not None
    assert found.runner_up["residual"] > 0.01


@pytest.mark.parametrize("probe", ["decode-paths", "repeatability", "generate"])
def test_a_table_that_switches_with_the_length_is_named(probe: str) -> None:
    found = injected("builtin:gqa", probe, "rope-scale-switch")
    assert (told(found).fault, told(found).how) == ("rope-scale-switch", "reproduced")
    assert found.location is not None
    assert found.location.layer == 0


def test_dynamic_scaling_that_stays_after_a_longer_call_is_named() -> None:
    subject = Subject.of(rotary("dynamic"), "dynamic", dtype="float64")
    found = told(explained(subject, "repeatability"))
    assert (found.fault, found.how) == ("rope-scale-switch", "reproduced")
    assert "longer call" in found.advice


@pytest.mark.parametrize("probe", ["generate", "position-reset"])
def test_positions_handed_over_from_nought_where_the_model_counts_from_padding(probe: str) -> None:
    found = injected("config:roberta", probe)
    assert (told(found).fault, told(found).how) == ("generate-positions", "reproduced")
    assert "passes position 0" in told(found).advice


def test_a_leak_inside_attention_that_nothing_explains_is_told_by_its_line() -> None:
    """Prophetnet permutes its relative bias: no queries, keys, weights or heads show how."""
    found = injected("config:prophetnet", "future-token")
    assert (told(found).how, told(found).fault) == ("measured", "")
    assert found.location is not None
    assert found.location.module == "prophetnet.decoder.layers.0.self_attn"
    assert "modeling_prophetnet.py:" in found.location.source
    assert "`predict_attn_output = torch.einsum(`" in told(found).sentence


@pytest.mark.parametrize(
    ("target", "probe", "fault"),
    [
        ("builtin:alibi", "decode-paths", "cache-stale"),
        ("builtin:alibi", "decode-paths", "alibi-local"),
        ("builtin:alibi", "future-token", "mask-off-by-one"),
        ("config:mamba2", "batch-rows", "cache-reorder"),
    ],
)
def test_models_that_attend_by_themselves_or_keep_states_are_named_too(
    target: str, probe: str, fault: str
) -> None:
    found = told(injected(target, probe, fault))
    assert (found.fault, found.how) == (fault, "reproduced")


@pytest.mark.parametrize(
    ("target", "probe", "fault", "said"),
    [
        ("config:falcon", "implementations", "causal-mask-missing", "boolean mask"),
        ("config:moshi", "decode-paths", "window-ignored", "he cache keeps a window of 8"),
    ],
)
def test_what_a_release_has_is_named(target: str, probe: str, fault: str, said: str) -> None:
    found = told(injected(target, probe))
    assert (found.fault, found.how) == (fault, "reproduced")
    assert said in found.advice


@pytest.mark.parametrize(
    ("target", "pair"),
    [
        ("builtin:window", ("position-restart", "window-ignored")),
        ("builtin:gqa", ("mask-top-left", "position-offset")),
    ],
)
def test_two_faults_that_begin_at_two_places_are_told_together(
    target: str, pair: tuple[str, str]
) -> None:
    found = told(injected(target, "decode-paths", *pair))
    assert (found.fault in pair, found.how) == (True, "measured")
    (other,) = set(pair) - {found.fault}
    assert f"ogether with {other}" in found.advice
    assert found.residual is not None
    assert found.residual < 1e-12


def test_no_table_is_guessed_where_none_depends_on_the_length() -> None:
    subject = loaded("builtin:gqa")
    guesses = hypotheses(Trusted(subject), ForwardSpec(subject.inputs.tokens, chunks=(8, 1, 2, 13)))
    assert not any("longer call" in guess.parameter for guess in guesses)


def test_an_edit_without_effect_reproduces_nothing() -> None:
    subject = loaded("builtin:gqa")
    with fault("position-restart").inject(subject), subject.passes.under("restart", False):
        failure = open_case(subject, failing(finding(subject, "decode-paths"))[0])
    side = failure.sides[0]
    assert side.trusted_BTV is not None
    wrong_BTV, right_BTV = side.observed_BTV, side.trusted_BTV
    search = Search(failure, [], 0.0)
    search._try([Hypothesis(predict=lambda *_: wrong_BTV, without=lambda *_: wrong_BTV)])
    assert not search.tried
    search._try([Hypothesis(predict=lambda *_: wrong_BTV, without=lambda *_: right_BTV)])
    assert len(search.matches) == 1
