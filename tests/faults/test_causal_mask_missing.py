"""causal-mask-missing is injected, caught by future-token and named."""

from __future__ import annotations

from injecting import assert_found, assert_predicted
from probing import finding, loaded

from attncheck.core.verdict import Verdict
from attncheck.diagnosis.diagnose import diagnose


def test_it_is_caught_named_and_located() -> None:
    assert_found("causal-mask-missing", "builtin:gqa", "future-token", "model.layers.0.self_attn")


def test_its_hypothesis_is_exact_and_no_other_fits() -> None:
    assert_predicted("causal-mask-missing")


def test_it_is_never_named_where_a_model_reads_ahead_by_design() -> None:
    found = finding(loaded("config:masked/convbert"), "padding")
    assert found.verdict is Verdict.FAIL
    explained = diagnose(loaded("config:masked/convbert"), found)
    assert explained.diagnosis is not None
    assert explained.diagnosis.fault != "causal-mask-missing"
