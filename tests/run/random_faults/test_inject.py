"""Each kind of fault changes what it says, in the calls that it says, and is gone afterwards."""

from __future__ import annotations

import pytest
import torch
from probing import loaded

from attncheck.attention.call import AttentionCall
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.subject import Subject
from attncheck.numerics.divergence import max_abs_diff
from attncheck.run.random_faults.inject import Injector
from attncheck.run.random_faults.parts import parse
from attncheck.run.random_faults.sites import Sites, sites_of

LAYER = "model.layers.1.self_attn"
SHOWN = 1e-6


@pytest.fixture(scope="module")
def gqa() -> Sites:
    return sites_of(loaded("builtin:gqa"))


def specs(subject: Subject) -> dict[str, ForwardSpec]:
    tokens, length = subject.inputs.tokens, subject.inputs.length
    third = length // 3
    rows = (*tokens, subject.inputs.other(subject.inputs.row, salt=3))
    return {
        "whole": ForwardSpec(tokens),
        "caching": ForwardSpec(tokens, use_cache=True),
        "chunk": ForwardSpec(tokens, chunks=(third, length - third)),
        "step": ForwardSpec(tokens, chunks=(length - 2, 1, 1)),
        "batch": ForwardSpec(rows),
        "static": ForwardSpec(tokens, chunks=(third, length - third), cache_kind="static"),
    }


def moved(sites: Sites, text: str) -> set[str]:
    """The calls whose logits the fault moves."""
    subject = sites.subject
    calls = specs(subject)
    healthy = {name: subject.logits(spec) for name, spec in calls.items()}
    with Injector(sites, parse(text)).injected():
        faulty = {name: subject.logits(spec) for name, spec in calls.items()}
    for name, spec in calls.items():
        subject.passes.drop(spec)
        assert torch.equal(subject.logits(spec), healthy[name]), "the fault is still there"
    return {name for name in calls if max_abs_diff(faulty[name], healthy[name]) > SHOWN}


CHUNKED = {"chunk", "step", "static"}
PLAIN = {"whole", "batch"}
"""Forwards without a cache."""


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (f"what=keys,how=slot:1,at={LAYER},when=chunk", {"chunk", "static"}),
        (f"what=keys,how=angle:3,at={LAYER},heads=1,when=step", {"step"}),
        (f"what=values,how=round:8,at={LAYER},when=uncached", PLAIN),
        ("what=keys+values,how=head:1,when=static", {"static"}),
        (f"what=queries,how=scale:2,at={LAYER},when=batch", {"batch"}),
        ("what=cells,how=not-self,when=first", {*PLAIN, *CHUNKED, "caching"}),
        (f"what=cells,how=hide:3,at={LAYER},tokens=9-,when=cached", CHUNKED),
        (f"what=output,how=zero,at={LAYER},heads=0,when=cached", CHUNKED),
        (f"what=stored-values,how=zero,at={LAYER},tokens=2-3,when=cached", CHUNKED),
        ("what=stored-keys+values,how=layer,when=step", {"step"}),
        ("what=hidden,how=scale:1.25,at=model.layers.0.mlp,when=step", {"step"}),
        ("what=logits,how=slot:1,when=chunk", {"chunk", "static"}),
        ("what=positions,how=offset:2,when=cached", CHUNKED),
    ],
)
def test_a_fault_shows_in_its_calls_only(gqa: Sites, text: str, where: set[str]) -> None:
    assert moved(gqa, text) == where


def test_a_recorder_sees_the_changed_keys(gqa: Sites) -> None:
    subject, tokens = gqa.subject, gqa.subject.inputs.tokens

    def keys(call: AttentionCall) -> torch.Tensor:
        return call.key_BGSD.clone()

    healthy = subject.record_calls(tokens, keys)
    with Injector(gqa, parse(f"what=keys,how=zero,at={LAYER},heads=0,tokens=4-5")).injected():
        faulty = subject.record_calls(tokens, keys)
    assert torch.equal(faulty[0], healthy[0])
    assert not faulty[1][:, 0, 4:6].any()
    assert torch.equal(faulty[1][:, 1], healthy[1][:, 1])
    assert torch.equal(faulty[1][:, 0, 6:], healthy[1][:, 0, 6:])


def test_an_angle_is_a_number_of_positions(gqa: Sites) -> None:
    """Queries and keys that are both rotated on give the same scores, so the same logits."""
    text = f"how=angle:3,at={LAYER},when=always"
    spec = ForwardSpec(gqa.subject.inputs.tokens)
    healthy = gqa.subject.logits(spec)
    queries, keys = (Injector(gqa, parse(f"what={what},{text}")) for what in ("queries", "keys"))
    with queries.injected():
        one = max_abs_diff(gqa.subject.logits(spec), healthy)
        with keys.injected():
            both = max_abs_diff(gqa.subject.logits(spec), healthy)
    assert one > SHOWN
    assert both < 1e-10


def test_attention_in_the_models_own_arithmetic() -> None:
    sites = sites_of(loaded("config:bloom"))
    assert not sites.upstream
    layer = sites.attention[1].module
    assert moved(sites, f"what=keys,how=slot:1,at={layer},when=cached") == CHUNKED
    assert moved(sites, f"what=cells,how=not-self,at={layer},when=step") == {"step"}


def test_recurrent_states() -> None:
    sites = sites_of(loaded("config:mamba2"))
    assert sites.states
    assert not sites.attention
    assert moved(sites, f"what=states,how=zero,at={sites.hidden[0]},when=cached") == CHUNKED
