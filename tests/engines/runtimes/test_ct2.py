"""ctranslate2 against transformers: run by `make test-engines`, which installs it."""

from __future__ import annotations

import pytest

from attncheck.core.settings import Settings
from attncheck.core.verdict import Verdict
from attncheck.engines.examination import examined_in_engine

pytest.importorskip("ctranslate2")


def test_a_healthy_type_passes() -> None:
    with examined_in_engine("config:codegen", Settings(engine="ct2")) as examination:
        found = {each.probe: each.verdict for each in examination.findings()}
    assert found["engine-weights"] is Verdict.PASS
    assert set(found.values()) <= {Verdict.PASS, Verdict.SKIP}


def test_a_window_that_is_not_read_is_named() -> None:
    with examined_in_engine("config:qwen3", Settings(engine="ct2")) as examination:
        finding = next(examination.findings())
    assert finding.diagnosis is not None
    assert (finding.diagnosis.fault, finding.diagnosis.how) == ("window-ignored", "reproduced")
