from __future__ import annotations

from typing import Any

import pytest
import torch
from engine_servers import tiny, torch_engine

from attncheck.core.finding import Finding
from attncheck.core.measurement import verdict_of
from attncheck.core.verdict import Verdict
from attncheck.engines.injecting import FAULTS, InjectingEngine, Where
from attncheck.engines.self_check import WHERE, SelfCheck


def findings(engine: Any) -> dict[str, Finding]:
    return {each.probe: each for each in SelfCheck(engine).findings()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_healthy_engine_passes_with_all_controls_seen(dtype: torch.dtype) -> None:
    found = findings(torch_engine(tiny(), dtype))
    verdicts = {name: str(each.verdict) for name, each in found.items()}
    assert verdicts == {
        "engine-repeat": "pass",
        "engine-scoring": "pass",
        "engine-decode": "pass",
        "engine-chunks": "pass",
        "engine-cache": "skip",
        "engine-batch": "pass",
    }
    controls = [control for each in found.values() for control in each.controls]
    assert len(controls) == 4
    assert all(control.detected for control in controls)


@pytest.mark.parametrize("where", ["scoring", "decode", "chunks", "batch"])
def test_a_fault_fails_in_its_family_alone_and_is_named(where: Where) -> None:
    found = findings(InjectingEngine(torch_engine(tiny()), where))
    failed = [name for name, each in found.items() if each.verdict is Verdict.FAIL]
    assert failed == [name for name, place in WHERE.items() if place == where]
    diagnosis = found[failed[0]].diagnosis
    assert diagnosis is not None
    assert (diagnosis.fault, diagnosis.how) == (
        FAULTS[where],
        "reproduced",
    )


def test_a_fault_of_decoding_is_not_hidden_by_its_own_size() -> None:
    """The budget comes from the other families, never from the one that is judged."""
    check = SelfCheck(InjectingEngine(torch_engine(tiny(), torch.bfloat16), "decode"))
    found = {each.probe: each for each in check.findings()}
    assert found["engine-decode"].verdict is Verdict.FAIL
    others = [each.verdict for name, each in found.items() if name != "engine-decode"]
    assert set(others) <= {Verdict.PASS, Verdict.SKIP}


def test_an_engine_that_takes_nothing_is_skipped_with_the_reasons() -> None:
    engine = torch_engine(tiny(), scores=False, cuts=False, together=1)
    found = findings(engine)
    skipped = {name: each.summary for name, each in found.items() if each.verdict is Verdict.SKIP}
    assert skipped["engine-scoring"] == "the engine gives no log-probabilities of a prompt"
    assert skipped["engine-batch"] == "the engine computes one request at a time"
    assert found["engine-decode"].verdict is Verdict.PASS
    assert all(verdict_of(case) is Verdict.PASS for case in found["engine-decode"].cases)
