"""What probe tests share: run probes to findings, and plant a fault around one probe."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
import transformers
from conftest import tiny_llama

from attncheck.core import registry
from attncheck.core.finding import Finding
from attncheck.core.measurement import Measurement, verdict_of
from attncheck.core.settings import Settings
from attncheck.core.verdict import Verdict
from attncheck.faults import registry as faults
from attncheck.model.compat import CACHE_NAMES
from attncheck.model.subject import Subject
from attncheck.run.controls import noticed
from attncheck.run.runner import ProbeFinished, run_probes
from attncheck.targets.load import load

HEALTHY = ("gqa", "mha", "window", "alibi", "moe")
ACCUSING = frozenset({Verdict.FAIL, Verdict.ERROR, Verdict.VACUOUS, Verdict.NOISE})


def loaded(target: str, **settings: object) -> Subject:
    return load(target, Settings(**settings))  # type: ignore[arg-type]


def finding(subject: Subject, name: str, **options: object) -> Finding:
    (event,) = [
        e
        for e in run_probes(subject, [registry.load(name, options)])
        if isinstance(e, ProbeFinished)
    ]
    return event.finding


def case(found: Finding, name: str) -> Measurement:
    return next(each for each in found.cases if each.name == name)


def caught_by(subject: Subject, probe: str, fault: str) -> Measurement | None:
    """The first case that comes out worse with the fault planted, or None."""
    measured = registry.load(probe)
    healthy = {each.name: each for each in measured.measure(subject)}
    with faults.fault(fault).injected(subject):
        return next(
            (each for each in measured.measure(subject) if noticed(each, healthy.get(each.name))),
            None,
        )


def assert_caught(subject: Subject, probe: str, fault: str) -> None:
    """The probe notices the fault, and measures as before once the fault is gone."""
    measured = registry.load(probe)
    healthy = {each.name: verdict_of(each) for each in measured.measure(subject)}
    assert caught_by(subject, probe, fault) is not None
    assert all(verdict_of(each) is healthy[each.name] for each in measured.measure(subject)), (
        "the fault left something behind"
    )


def without_mask(subject: Subject, when: Callable[[int, int], bool]) -> None:
    """The first layer loses its mask for some (queries, cached tokens)."""
    attention = subject.model.model.layers[0].self_attn
    usual = attention.forward

    def forward(*args: Any, **named: Any) -> Any:
        cache = next((named[name] for name in CACHE_NAMES if named.get(name) is not None), None)
        before = int(cache.get_seq_length()) if cache is not None else 0
        if when(named["hidden_states"].shape[1], before):
            named["attention_mask"] = torch.zeros(1, 1, 1, 1, dtype=torch.float64)
        return usual(*args, **named)

    attention.forward = forward


def saved_adapter(folder: Path, *, trained: bool = True) -> Path:
    """A base model and an adapter for it, as folders."""
    import peft

    tiny_llama().save_pretrained(folder / "base")
    base = transformers.AutoModelForCausalLM.from_pretrained(folder / "base")
    config = peft.LoraConfig(
        r=4,
        target_modules=["q_proj", "v_proj"],
        init_lora_weights=not trained,
        task_type="CAUSAL_LM",
    )
    torch.manual_seed(1)
    peft.get_peft_model(base, config).save_pretrained(folder / "adapter")
    return folder / "adapter"


needs_gloo = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
    reason="torch has no gloo here",
)


def torchrun(
    *arguments: str, ranks: int = 2, seconds: float = 150.0
) -> subprocess.CompletedProcess[str]:
    """Processes on this machine, on a port of their own."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(ranks),
        *arguments,
    ]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "200",
        "ATTNCHECK_TP_TIMEOUT": "20",
    }
    return subprocess.run(
        command, capture_output=True, text=True, timeout=seconds, env=environment, check=False
    )
