"""Annotations and the step summary of GitHub."""

from __future__ import annotations

from pathlib import Path

from report.reports import everything

from attncheck.report.github import tell_github, workflow_commands


def test_github_annotations_are_one_line_each() -> None:
    lines = list(workflow_commands(everything()))
    assert all("\n" not in line and line.startswith("::") for line in lines)
    assert sum(line.startswith("::error") for line in lines) == 5
    assert any("%25" in line and "%0A" in line for line in lines)


def test_github_is_told_only_there(tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    assert tell_github(everything(), {}) == []
    told = tell_github(
        everything(), {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)}
    )
    assert len(told) == 9
    assert summary.read_text(encoding="utf-8").startswith("before\n## attncheck: failed")


def test_a_step_summary_that_cannot_be_written_is_one_line() -> None:
    there = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": "/dev/full"}
    line, *annotations = tell_github(everything(), there)
    assert line == "attncheck: step summary /dev/full: not written: No space left on device"
    assert annotations == list(workflow_commands(everything()))
