"""The real SmolLM2-135M: nothing healthy is accused, every control is caught, and a planted fault
is found.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from attncheck.core import registry
from attncheck.core.finding import Finding
from attncheck.core.settings import Settings
from attncheck.core.verdict import Verdict
from attncheck.faults import registry as faults
from attncheck.model.subject import Subject
from attncheck.run.runner import ProbeFinished, run_probes
from attncheck.targets.load import load

FIVE = ("future-token", "decode-paths", "position-reset", "document-leakage", "kv-repeat")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def real(smollm2: Path) -> Subject:
    return load(str(smollm2), Settings(dtype="float32"))


def findings(subject: Subject, *names: str) -> dict[str, Finding]:
    events = run_probes(subject, [registry.load(name) for name in names])
    return {
        event.finding.probe: event.finding for event in events if isinstance(event, ProbeFinished)
    }


def unquantised(config: Any) -> Any:
    """A model read from .gguf holds plain weights, but its config still calls them quantised and
    refuses to be saved.
    """
    plain = copy.deepcopy(config)
    del plain.quantization_config
    return plain


def test_the_five_probes_hold_with_every_control_caught(real: Subject) -> None:
    found = findings(real, *FIVE)
    expected = dict.fromkeys(FIVE, Verdict.PASS) | {"document-leakage": Verdict.WARN}
    assert {name: finding.verdict for name, finding in found.items()} == expected
    assert all(
        [control.detected for control in finding.controls] == [True, True]
        for finding in found.values()
    )


def test_its_text_is_its_input(real: Subject) -> None:
    assert real.inputs.from_text
    assert real.tokenizer.decode(real.inputs.row).startswith(
        "The lighthouse keeper counted seven ships"
    )


def test_a_planted_fault_is_found(real: Subject) -> None:
    fault = faults.fault("position-restart")
    with fault.inject(real), real.passes.under(fault.name, fault.on_cache_only):
        found = findings(real, "decode-paths")["decode-paths"]
    assert found.verdict is Verdict.FAIL
    assert max(case.max_abs or 0.0 for case in found.cases) > 1.0


def test_a_saved_folder_gives_the_same_verdicts(real: Subject, tmp_path: Path) -> None:
    plain = type(real.model)(unquantised(real.config))
    plain.load_state_dict(real.model.state_dict())
    plain.save_pretrained(tmp_path / "saved")
    real.tokenizer.save_pretrained(tmp_path / "saved")
    again = load(str(tmp_path / "saved"), Settings(dtype="float32"))
    assert again.inputs.row == real.inputs.row
    assert findings(again, "kv-repeat")["kv-repeat"].verdict is Verdict.PASS
