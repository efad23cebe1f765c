"""The sample repository of docs/ci.md: the gate passes it, catches the pull request, and comments."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from scripts.gate_page import PAGE, SAMPLE, made, section

NUMBER = re.compile(r"-?\d[\d.e+-]*")


def _without_numbers(text: str) -> str:
    lines = [line for line in text.splitlines() if not line.startswith("<sub>")]
    return NUMBER.sub("#", "\n".join(lines))


def test_the_page_shows_what_the_workflow_does(tmp_path: Path) -> None:
    healthy, changed, said, comment = made(tmp_path)
    assert (healthy, changed) == (0, 1)
    assert said.startswith("DIFFERENT")
    assert "(only in batches above one), first in model.layers.1.self_attn" in said
    assert _without_numbers(section(comment)) in _without_numbers(PAGE.read_text())


def test_the_workflow_is_one() -> None:
    workflow = yaml.safe_load((SAMPLE / "workflow.yml").read_text())
    steps = workflow["jobs"]["gate"]["steps"]
    assert [each["run"].split()[0] for each in steps if "run" in each] == ["pip", "attncheck", "gh"]
    assert workflow["permissions"]["pull-requests"] == "write"
    assert not any("${{" in each.get("run", "") for each in steps)
