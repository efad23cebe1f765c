"""Faults that nobody enumerated are measured: their parts, and the proof by the same logits."""

from __future__ import annotations

from functools import lru_cache, partial

import pytest
from probing import loaded

from attncheck.faults.engine.trusted import Trusted
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.subject import Subject
from attncheck.numerics.divergence import max_abs_diff
from attncheck.observation.observe import Observation, observed
from attncheck.run.random_faults.inject import Injector
from attncheck.run.random_faults.parts import parse
from attncheck.run.random_faults.sites import Sites, sites_of

LAYER = "model.layers.1.self_attn"


@lru_cache(maxsize=1)
def sites() -> Sites:
    return sites_of(loaded("builtin:gqa"))


def seen(
    text: str, chunks: tuple[int, ...] = (), of: Sites | None = None
) -> tuple[Observation, float]:
    """The observation of a fault, and the difference of its prediction from the wrong logits."""
    of = of or sites()
    subject: Subject = of.subject
    chunks = chunks or (8, 1, 2, subject.inputs.length - 11)
    spec, trusted = ForwardSpec(subject.inputs.tokens, chunks=chunks), Trusted(subject)
    right_BTV, budget = trusted.logits(spec), subject.budget.value
    with Injector(of, parse(text)).injected():
        wrong_BTV = subject.logits(spec)
        assert max_abs_diff(right_BTV, wrong_BTV) > 1e-3
        found = observed(
            trusted,
            spec,
            partial(subject.passes.replay, spec),
            right_BTV,
            lambda logits_BTV: max_abs_diff(logits_BTV, wrong_BTV) <= budget,
        )
    return found, max_abs_diff(found.predicted_BTV, wrong_BTV)


@pytest.mark.parametrize(
    ("text", "parts", "words"),
    [
        (
            f"what=stored-keys,how=round:8,at={LAYER},when=cached",
            [("keys", "rounded", (1,))],
            "rounded to bfloat16",
        ),
        (
            f"what=keys,how=slot:1,at={LAYER},heads=0,tokens=4-7,when=step",
            [("keys", "other token", (1,))],
            "keys of tokens 4..7 are those of the token 1 before, in layer 1, head 0",
        ),
        (
            f"what=queries,how=angle:3,at={LAYER},when=chunk",
            [("queries", "rotated", (1,))],
            "3 positions too far",
        ),
        (
            f"what=values,how=zero,at={LAYER},heads=1,tokens=2-5,when=cached",
            [("values", "zero", (1,))],
            "values of tokens 2..5 are zero",
        ),
        (
            f"what=cells,how=hide:3,at={LAYER},when=chunk",
            [("cells", "hidden", (1,))],
            "token 3 cannot be read",
        ),
        (
            "what=hidden,how=scale:1.25,at=model.layers.2.mlp.down_proj,when=step",
            [("hidden", "scaled", (2,))],
            "multiplied by 1.25",
        ),
    ],
)
def test_what_was_done_is_measured_and_proven(
    text: str, parts: list[tuple[str, str, tuple[int, ...]]], words: str
) -> None:
    found, residual = seen(text)
    assert [(each.what, each.how, each.layers) for each in found.parts] == parts
    assert words in found.sentence
    assert not found.opaque
    assert residual <= sites().subject.budget.value


@pytest.mark.parametrize(("how", "said"), [("zero", "zero"), ("slot:1", "other token")])
def test_what_changes_queries_keys_and_values_alike_stands_before_them(how: str, said: str) -> None:
    found, residual = seen(f"what=hidden,how={how},at=model.layers.1.input_layernorm,when=chunk")
    assert [(part.what, part.how) for part in found.parts] == [("hidden", said)]
    assert "outputs of model.layers.1.input_layernorm" in found.sentence
    assert not found.opaque
    assert residual < 1e-12


def test_a_factor_that_norms_of_queries_and_keys_take_away_is_told_before_them() -> None:
    subject = loaded("config:gemma3_text")
    fault = "what=hidden,how=scale:1.25,at=model.layers.2.input_layernorm,when=chunk"
    found, residual = seen(fault, of=sites_of(subject))
    assert [(part.what, part.how, part.amount) for part in found.parts] == [
        ("hidden", "scaled", pytest.approx(1.25))
    ]
    assert residual < 1e-12


def test_zeros_in_one_head_behind_the_kernel_are_told_by_their_channels() -> None:
    found, residual = seen(f"what=output,how=zero,at={LAYER},heads=1,when=step")
    assert [part.how for part in found.parts] == ["zero"]
    assert residual < 1e-12


def test_a_right_forward_shows_nothing() -> None:
    subject = sites().subject
    spec, trusted = ForwardSpec(subject.inputs.tokens, chunks=(8, 1, 2, 13)), Trusted(subject)
    right_BTV = trusted.logits(spec)
    run = partial(subject.passes.replay, spec)
    found = observed(trusted, spec, run, right_BTV, lambda logits_BTV: True)
    assert found.parts == ()
    assert found.sentence == ""
    assert max_abs_diff(found.predicted_BTV, right_BTV) <= subject.budget.value


def test_two_faults_are_both_told() -> None:
    subject = sites().subject
    spec, trusted = ForwardSpec(subject.inputs.tokens, chunks=(8, 1, 2, 13)), Trusted(subject)
    right_BTV = trusted.logits(spec)
    first = parse(f"what=stored-keys,how=zero,at={LAYER},tokens=2-3,when=cached")
    second = parse("what=hidden,how=scale:2,at=model.layers.3.mlp.down_proj,when=chunk")
    with Injector(sites(), first).injected(), Injector(sites(), second).injected():
        wrong_BTV = subject.logits(spec)
        found = observed(
            trusted,
            spec,
            partial(subject.passes.replay, spec),
            right_BTV,
            lambda logits_BTV: max_abs_diff(logits_BTV, wrong_BTV) <= subject.budget.value,
        )
    assert {(each.what, each.how, each.layers) for each in found.parts} == {
        ("keys", "zero", (1,)),
        ("hidden", "scaled", (3,)),
    }
    assert max_abs_diff(found.predicted_BTV, wrong_BTV) <= subject.budget.value
