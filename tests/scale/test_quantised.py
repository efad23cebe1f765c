"""Quantised weights are checked as they are, with the noise that they have; doubt is settled in float64, dequantised."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import tiny_llama

from attncheck import registry
from attncheck.diagnosis.diagnose import Diagnoser
from attncheck.errors import TargetError
from attncheck.finding import Finding, Verdict
from attncheck.numerics.promote import Promote
from attncheck.runner import ProbeFinished, run_probes
from attncheck.settings import Settings
from attncheck.subject.load import settle_dtype
from attncheck.subject.passes import Pass
from attncheck.subject.placement import quantised
from attncheck.subject.subject import Subject

quanto = pytest.importorskip("optimum.quanto", reason="optimum-quanto is not installed")


def small(dtype: torch.dtype, asked: str = "auto") -> Subject:
    model = tiny_llama().to(dtype)
    quanto.quantize(model, weights=quanto.qint8, exclude="lm_head")
    quanto.freeze(model)
    subject = Subject(name="small", model=model, settings=Settings(length=12, dtype=asked))
    settle_dtype(subject, asked)
    return subject


def findings(subject: Subject, *names: str) -> dict[str, Finding]:
    events = run_probes(subject, [registry.load(name) for name in registry.select(names)], Diagnoser())
    return {event.finding.probe: event.finding for event in events if isinstance(event, ProbeFinished)}


def test_quantised_weights_stay_as_they_are() -> None:
    subject = small(torch.float32)
    assert quantised(subject.model) == "WeightQBytesTensor"
    assert subject.dtype_name == "float32"
    assert not subject.widened
    assert 1e-7 < subject.budget.value < 1e-3
    assert any("checked as they are" in remark for remark in subject.remarks)


def test_every_probe_works_on_quantised_weights_or_says_why_not() -> None:
    found = findings(small(torch.float32))
    assert set(found) == set(registry.installed())
    wrong = (Verdict.ERROR, Verdict.FAIL, Verdict.VACUOUS)
    assert not [(name, finding.summary) for name, finding in found.items() if finding.verdict in wrong]
    skipped = [case.note for case in found["gradient"].cases if case.expect == "skip"]
    assert any("no step along them" in note or "float64" in note for note in skipped)


def test_half_precision_is_decided_by_the_ladder() -> None:
    found = findings(small(torch.bfloat16), "padding", "reference", "decode-paths")
    assert {finding.verdict for finding in found.values()} <= {Verdict.PASS, Verdict.NOISE}
    raised = [case.ladder[-1] for finding in found.values() for case in finding.cases if case.ladder]
    assert raised
    assert all(rung.dtype == "float64" and rung.budget < 1e-10 for rung in raised)


def test_float64_computes_with_the_numbers_that_quantised_weights_stand_for() -> None:
    subject = small(torch.float32, "float64")
    assert subject.widened
    plain = tiny_llama()
    for name, value in subject.model.named_parameters():
        stands_for: Any = value.dequantize() if type(value.data) is not torch.Tensor else value
        plain.get_parameter(name).data = stands_for.detach().clone()
    plain.double()
    with torch.no_grad(), Promote():
        want_BTV = plain(input_ids=subject.passes.ids(subject.inputs.tokens), use_cache=False).logits
    got_BTV = subject.logits(Pass(subject.inputs.tokens))
    assert got_BTV.dtype == torch.float64
    assert float((got_BTV - want_BTV).abs().max()) < 1e-12


def test_another_dtype_cannot_be_asked_for() -> None:
    with pytest.raises(TargetError, match="the weights are quantised"):
        small(torch.float32, "bfloat16")
