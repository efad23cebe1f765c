"""`attncheck selftest` with composed faults: given as text, or drawn."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from attncheck.cli.app import app

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
