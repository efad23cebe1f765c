"""--compile: the compiled model against the eager one, with a budget of its own; the model comes
back as it was.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
import torch
from conftest import tiny_llama

from attncheck.core import registry
from attncheck.core.measurement import Measurement, verdict_of
from attncheck.core.settings import Settings
from attncheck.core.verdict import Verdict
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.subject import Subject
from attncheck.run.runner import ProbeFinished, run_probes
from attncheck_probes.implementations import compiled as compiling
from attncheck_probes.implementations.compiled import compiled_cases, why_not_compiled

BACKEND = "eager"
"""Traced and run without generated code: what a compiler sees of the model, in a tenth of the time.
"""
REASON = why_not_compiled(BACKEND, torch.device("cpu"))

pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))


def small(**settings: Any) -> Subject:
    return Subject.of(
        tiny_llama(num_hidden_layers=1), "small", settings=Settings(length=12, **settings)
    )


def test_nothing_is_compiled_unless_it_is_asked_for() -> None:
    assert list(compiled_cases(small())) == []


def test_the_compiled_model_gives_the_same_logits() -> None:
    subject = small(compiled=BACKEND)
    before_BTV = subject.logits(ForwardSpec(subject.inputs.tokens)).clone()
    cases = list(compiled_cases(subject))
    assert [case.name for case in cases] == [
        f"compiled ({BACKEND}) vs not, plain row",
        f"compiled ({BACKEND}) with a fault vs not, plain row",
        f"compiled ({BACKEND}) vs not, decoded on a cache",
        f"compiled ({BACKEND}) vs not, left-padded batch",
    ]
    assert [verdict_of(case) for case in cases] == [Verdict.PASS] * 4
    assert cases[1].expect == "differ"
    assert cases[1].excess > 1e3
    assert all(case.positions for case in cases)
    assert "forward" not in vars(subject.model)
    subject.passes.forget()
    assert torch.equal(subject.logits(ForwardSpec(subject.inputs.tokens)), before_BTV)


def test_a_compiler_that_leaves_the_model_as_it_is_proves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subject = small(compiled=BACKEND)
    monkeypatch.setattr(torch, "compile", lambda forward, **options: forward)
    cases = list(compiled_cases(subject))
    assert [verdict_of(case) for case in cases] == [
        Verdict.PASS,
        Verdict.VACUOUS,
        Verdict.PASS,
        Verdict.PASS,
    ]
    finding = next(
        event.finding
        for event in run_probes(subject, [registry.load("implementations")])
        if isinstance(event, ProbeFinished)
    )
    assert finding.verdict is Verdict.VACUOUS


def test_another_backend_that_traces_the_backward_pass_too() -> None:
    reason = why_not_compiled("aot_eager", torch.device("cpu"))
    if reason is not None:
        pytest.skip(reason)
    cases = list(islice(compiled_cases(small(compiled="aot_eager")), 2))
    assert [verdict_of(case) for case in cases] == [Verdict.PASS] * 2
    assert cases[1].expect == "differ"
    assert all("aot_eager" in case.name for case in cases)


def test_a_compiler_that_drops_something_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(forward: Any, **options: Any) -> Any:
        def call(*args: Any, **named: Any) -> Any:
            output = forward(*args, **named)
            output.logits[:, 1:] *= 1.001
            return output

        return call

    subject = small(compiled=BACKEND)
    monkeypatch.setattr(compiling, "why_not_compiled", lambda backend, device: None)
    monkeypatch.setattr(torch, "compile", wrong)
    cases: list[Measurement] = list(compiled_cases(subject))
    assert [verdict_of(case) for case in cases] == [Verdict.FAIL] * 3
    assert cases[0].divergence.first_position == 1


def test_a_backend_that_is_not_there_is_a_skip_with_its_reason() -> None:
    (case,) = compiled_cases(small(compiled="no-such-backend"))
    assert verdict_of(case) is Verdict.SKIP
    assert "no-such-backend" in case.note


def test_the_probe_has_the_cases() -> None:
    names = [
        case.name
        for case in registry.load("implementations").measure(small(compiled="no-such-backend"))
    ]
    assert "compiled" in names
