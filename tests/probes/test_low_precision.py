"""A half precision that the model asks for by itself shows in float64 too, where hidden float32 is
lifted.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import tiny_llama
from probing import case, finding
from transformers.cache_utils import DynamicLayer

from attncheck.core.finding import Verdict, verdict_of
from attncheck.diagnosis.diagnose import diagnose
from attncheck.model.subject import Subject


@pytest.fixture
def double() -> Subject:
    subject = Subject(name="llama", model=tiny_llama())
    subject.take(torch.float64)
    return subject


def test_keys_that_pass_through_bfloat16_on_their_way_into_the_cache(
    double: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = DynamicLayer.update

    def rounded(layer: Any, keys: Any, values: Any, *rest: Any, **named: Any) -> Any:
        return usual(
            layer,
            keys.bfloat16().to(keys.dtype),
            values.bfloat16().to(values.dtype),
            *rest,
            **named,
        )

    assert finding(double, "decode-paths").verdict is Verdict.PASS
    double.__dict__.pop("passes")
    monkeypatch.setattr(DynamicLayer, "update", rounded)
    found = diagnose(double, finding(double, "decode-paths"))
    assert found.verdict is Verdict.FAIL
    assert found.diagnosis is not None
    assert found.diagnosis.fault == "cache-low-precision"
    assert 1e-5 < max(each.max_abs or 0.0 for each in found.cases) < 0.2


def test_a_softmax_in_bfloat16_under_one_implementation(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = F.softmax
    subject = Subject(name="llama", model=tiny_llama())
    subject.take(torch.float64)
    monkeypatch.setattr(
        F, "softmax", lambda scores, **named: usual(scores, **{**named, "dtype": torch.bfloat16})
    )
    assert (
        verdict_of(case(finding(subject, "implementations"), "eager vs sdpa, plain row"))
        is Verdict.FAIL
    )
