"""The simulated cost of a large sweep, against what can be worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from report.reports import everything

from attncheck.report.record import to_json
from scripts.sweep_cost import main, measured, simulated


def test_equal_models_fill_the_workers() -> None:
    cost = simulated([36.0], models=100, workers=10, lost=0.0, start=0.0)
    assert (cost.hours, cost.worker_hours, cost.busy) == pytest.approx((0.1, 1.0, 1.0))


def test_a_lost_worker_costs_half_a_model_and_starting_costs_each_worker() -> None:
    cost = simulated([36.0], models=100, workers=10, lost=1.0, start=36.0)
    assert (cost.hours, cost.worker_hours) == pytest.approx((0.16, 1.5))


def test_no_sweep_is_shorter_than_its_work_or_its_longest_model() -> None:
    seconds = [1.0, 5.0, 600.0]
    for workers in (1, 7, 1000):
        cost = simulated(seconds, models=50, workers=workers, lost=0.1, start=0.0)
        assert cost.hours >= cost.worker_hours / workers - 1e-9
        assert cost.hours >= 600 / 3600


def test_the_command_reads_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.json"
    path.write_text(to_json(everything()))
    checked = [each.seconds for each in everything().targets if each.results]
    assert measured([path]) == checked
    main([str(path), "--models", "1000", "--workers", "4"])
    shown = capsys.readouterr().out
    assert f"{len(checked)} targets measured" in shown
    assert "1,000 models, 1% of which lose a worker" in shown
    assert "\n| 4 | " in shown
