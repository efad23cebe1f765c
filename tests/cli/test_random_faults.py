"""`attncheck selftest` with composed faults: given as text, or drawn."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from attncheck.cli.app import app
from attncheck.run.random_faults import smallest

ONE = ["selftest", "builtin:gqa", "--probe", "decode-paths"]


def test_a_fault_in_parts_is_tried_alone() -> None:
    found = CliRunner().invoke(app, [*ONE, "--fault", "what=positions,how=restart,when=cached"])
    assert found.exit_code == 0
    assert "what=positions,how=restart,when=cached: caught, explained, placed" in found.output
    assert "decode-paths: reproduced position-restart" in found.output
    missed = CliRunner().invoke(app, [*ONE, "--fault", "what=cells,how=past,when=padded"])
    assert missed.exit_code == 1
    assert "NOT CAUGHT" in missed.output
    refused = CliRunner().invoke(app, [*ONE, "--fault", "what=cells,how=slot:1"])
    assert "`slot` in `what=cells,how=slot:1`: expected one of" in str(refused.exception)


def test_a_batch_goes_on_from_its_record(tmp_path: Path) -> None:
    record, page = tmp_path / "trials.jsonl", tmp_path / "coverage.md"
    command = [*ONE, "--random", "1", "--record", str(record)]
    first = CliRunner().invoke(app, command)
    again = CliRunner().invoke(app, [*command, "--coverage", str(page)])
    assert first.output == again.output
    assert "1 injected: caught" in first.output
    assert len(record.read_text(encoding="utf-8").splitlines()) == 1
    assert "## Random faults" in page.read_text(encoding="utf-8")


def test_the_smallest_doses_are_found_in_each_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smallest, "KINDS", smallest.KINDS[6:7])
    monkeypatch.setattr(smallest, "DOSES", (0.1, 1e-10))
    monkeypatch.setattr(smallest, "DTYPES", ("float64", "float32"))
    page = tmp_path / "coverage.md"
    page.write_text("# What the probes catch\n\n## Random faults\n\nA table.\n", encoding="utf-8")
    found = CliRunner().invoke(
        app,
        ["selftest", "--smallest", "--probe", "future-token", "--coverage", str(page)],
    )
    assert found.exit_code == 0
    assert found.output.splitlines()[0].split(maxsplit=1) == [
        "float64",
        "the same, one head                            shows 1e-10  caught 1e-10 future-token",
    ]
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# What the probes catch\n\n## Random faults\n\nA table.\n\n")
    assert "| float32 | shows | future-token |" in text
    assert "| the same, one head | 0.1 | 0.1 |" in text
