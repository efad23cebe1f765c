"""The first probe of CONTRIBUTING.md works as it stands on the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from probing import loaded

from attncheck.core import registry
from attncheck.core.verdict import Verdict
from attncheck.faults import registry as faults
from attncheck.probing import Probe
from attncheck.run.runner import ProbeFinished, finding_of, run_probes

PAGE = Path(__file__).parent.parent / "CONTRIBUTING.md"


@pytest.fixture
def row_neighbours(tmp_path: Path) -> Probe:
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[0]
    (tmp_path / "row_neighbours.py").write_text(code, encoding="utf-8")
    return registry.load("row_neighbours.py:RowNeighbours", home=tmp_path)


def test_it_passes_on_a_healthy_model_and_notices_its_control(row_neighbours: Probe) -> None:
    *_, finished = run_probes(loaded("builtin:gqa"), [row_neighbours])
    assert isinstance(finished, ProbeFinished)
    assert finished.finding.verdict is Verdict.PASS
    assert [control.detected for control in finished.finding.controls] == [True]


def test_it_fails_on_a_faulty_model(row_neighbours: Probe) -> None:
    subject = loaded("builtin:gqa")
    with faults.fault("rows-mixed").injected(subject):
        assert finding_of(subject, row_neighbours).verdict is Verdict.FAIL
