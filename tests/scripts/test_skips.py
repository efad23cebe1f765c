"""The table of skips: each kind is counted, and a claim that does not hold is refuted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from attncheck.core.skip_kinds import KINDS
from scripts.skip_checks import CHECKS
from scripts.skips import main

TRUE = "offloading moves layers between an accelerator and the host: the model runs on the host"
FALSE = "LlamaForCausalLM.forward takes no `position_ids`"


def report(path: Path, *reasons: str) -> str:
    cases: list[dict[str, Any]] = [{"verdict": "pass", "note": ""}]
    cases += [{"verdict": "skip", "note": reason} for reason in reasons]
    results = [{"verdict": "pass", "cases": cases}]
    target = {"target": "builtin:gqa", "model": {}, "results": results}
    path.write_text(json.dumps({"targets": [target]}), encoding="utf-8")
    return str(path)


def test_every_kind_has_a_check() -> None:
    assert {kind.name for kind in KINDS} == set(CHECKS)


def test_a_reason_that_holds_is_confirmed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([report(tmp_path / "r.json", TRUE)]) == 0
    out = capsys.readouterr().out
    assert "from 1 targets: 1 questions asked,\n1 skipped." in out
    assert "| `host-only` | 1 | 1 |" in out
    assert out.rstrip().endswith("| the parameters are on the CPU | 1 of 1 |")


def test_a_reason_that_does_not_hold_is_refuted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([report(tmp_path / "r.json", FALSE)]) == 1
    assert f"no-such-argument: builtin:gqa: not confirmed: {FALSE}" in capsys.readouterr().err


def test_a_reason_of_no_kind_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([report(tmp_path / "r.json", "because")]) == 1
    assert "of no kind, 1 times: because" in capsys.readouterr().err
