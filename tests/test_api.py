"""attncheck.check on a model in memory: what it finds, and that the model comes back as it was."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from conftest import tiny_llama

import attncheck
from attncheck.core.errors import UsageError


def test_importing_attncheck_loads_no_torch() -> None:
    code = "import attncheck, sys; sys.exit('torch' in sys.modules or 'pydantic' in sys.modules or not attncheck.Verdict.PASS)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_healthy_model_passes(llama: Any) -> None:
    report = attncheck.check(llama, probes=["decode-paths", "kv-repeat"], name="mine")
    report.raise_for_failures()
    (target,) = report.targets
    assert target.target == "mine"
    assert [finding.verdict for finding in target.results] == [attncheck.Verdict.PASS] * 2
    assert target.settings["dtype"] == "float64"


def test_a_failure_raises_with_its_table(llama: Any) -> None:
    report = attncheck.check(llama, probes=[{"document-leakage": {"policy": "isolate"}}])
    with pytest.raises(attncheck.ChecksFailed, match="EOS alone"):
        report.raise_for_failures()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_model_comes_back_as_it_was(dtype: torch.dtype) -> None:
    model = tiny_llama().to(dtype).train()
    model.model.norm.float().eval()
    weights = {
        name: tensor.clone() for name, tensor in [*model.named_parameters(), *model.named_buffers()]
    }
    attn = model.config._attn_implementation
    attncheck.check(model, probes=["future-token"], attn="eager", dtype="float16")
    now = dict([*model.named_parameters(), *model.named_buffers()])
    assert all(
        torch.equal(weights[name], now[name]) and weights[name].dtype == now[name].dtype
        for name in weights
    )
    assert model.training
    assert not model.model.norm.training
    assert model.config._attn_implementation == attn


def test_targets_work_as_on_the_command_line() -> None:
    report = attncheck.check("builtin:broken-mask", probes="future-token")
    assert report.exit_code == 1
    assert attncheck.check("builtin:nope", probes="future-token").exit_code == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"probes": ["future-tokn"]}, "did you mean `future-token`"),
        ({"probes": [{"decode-paths": {"schedule": 1}}]}, "did you mean `schedules`"),
        ({"fail_on": ["wran"]}, "did you mean `warn`"),
        ({"sed": 1}, "did you mean `seed`"),
    ],
)
def test_mistakes_are_told_before_anything_runs(
    llama: Any, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        attncheck.check(llama, **given)


def test_an_unknown_attribute() -> None:
    with pytest.raises(AttributeError, match="has no attribute `chek`"):
        _ = attncheck.chek
