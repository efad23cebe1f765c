"""The terminal output, word for word, at three widths, without colour."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from attncheck.core.divergence import Divergence
from attncheck.core.finding import Control, Diagnosis, Finding, Location
from attncheck.core.measurement import AtMost, Comparison, skipped
from attncheck.core.verdict import Verdict
from attncheck.report.model import Report, TargetReport
from attncheck.report.record import from_json, to_json
from attncheck.report.terminal import print_target, summary_line, target_line

SNAPSHOTS = Path(__file__).parent / "snapshots"


def case(name: str, max_abs: float, **changes: Any) -> Comparison:
    usual = {"mean_abs": max_abs / 8, "kl": max_abs / 9, "top1_flips": 0, "positions": 24}
    divergence = Divergence(max_abs=max_abs, scale=5.0, **{**usual, **changes})
    return Comparison(name, divergence, 2.4e-14, "float64 reorder floor 6.1e-15 x 4")


FAILED = Finding(
    probe="decode-paths",
    verdict=Verdict.FAIL,
    seconds=0.84,
    summary="chunks 12+12, implicit positions: logits differ by 5.6 from position 12, rounding explains 2e-14",
    cases=(
        case("chunks 12+12, implicit positions", 5.6, first_position=12, top1_flips=11),
        case("one token at a time, explicit positions", 4e-15),
        case("generate()", 0.0, nonfinite=7),
        skipped("chunks of 8, 2D mask", "the model takes no 2D `attention_mask`"),
    ),
    diagnosis=Diagnosis(
        fault="position-restart",
        how="reproduced",
        residual=3e-13,
        runner_up={"fault": "mask-top-left", "residual": 0.8},
        advice="Add the length of the cache.",
    ),
    location=Location(module="model.layers.0.self_attn", layer=0, query_position=12),
)


PASSED = Finding(
    probe="future-token",
    verdict=Verdict.PASS,
    seconds=12.3,
    summary="11 cases passed over 264 positions; largest difference 0.17x the budget",
    cases=tuple(case(f"change {i}", i * 1e-16) for i in range(11)),
    controls=(
        Control(fault="causal-mask-missing", detected=True, max_abs=2.4),
        Control(fault="mask-off-by-one", detected=False),
    ),
    controls_missing="sink-missing: the config has no sinks",
)


BYTES = Finding(
    probe="kv-repeat",
    verdict=Verdict.WARN,
    seconds=0.1,
    summary="storage behind cached tensors: 3.429 x their own size, expected at most 1",
    cases=(
        AtMost("heads stored per layer", 2.0, "heads", limit=2.0, positions=24),
        AtMost(
            "storage behind cached tensors",
            24 / 7,
            "x their own size",
            limit=1.0,
            broken=Verdict.WARN,
            positions=8,
            note="a cached tensor is a view that keeps a larger storage alive",
        ),
    ),
)


MODEL = {
    "class": "LlamaForCausalLM",
    "parameters": 139840,
    "layers": 4,
    "heads": 4,
    "kv_heads": 2,
    "window": 8,
}


SETTINGS = {"attn": "sdpa", "dtype": "float64", "device": "cpu", "seed": 0, "length": 24}


REPORT = Report(
    attncheck="0.1.0",
    command="attncheck run",
    started="2026-01-01T00:00:00Z",
    seconds=75.0,
    targets=(
        TargetReport(
            target="builtin:gqa", model=MODEL, settings=SETTINGS, results=(FAILED, PASSED, BYTES)
        ),
        TargetReport(target="org/name", error="org/name: not in the local cache"),
    ),
)


def shown(report: Report, width: int, verbose: bool = False) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False, emoji=False)
    for target in report.targets:
        print_target(target, console, verbose)
    console.print(summary_line(report))
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"


@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_table_at_this_width(width: int) -> None:
    assert shown(REPORT, width) == (SNAPSHOTS / f"table-{width}.txt").read_text(encoding="utf-8")


def test_no_line_is_wider_than_the_terminal() -> None:
    assert max(len(line) for line in shown(REPORT, 80).splitlines()) <= 80


def test_verbose_shows_every_case() -> None:
    text = shown(REPORT, 120, verbose=True)
    assert all(f"change {i} " in text for i in range(11))
    assert "more cases" not in text
    assert "… 7 more cases (-v shows all)" in shown(REPORT, 120)


def test_a_saved_report_is_shown_the_same() -> None:
    assert shown(from_json(to_json(REPORT)), 100) == shown(REPORT, 100)


def test_a_target_of_a_sweep_in_one_line() -> None:
    line = target_line(REPORT.targets[0]).plain
    assert line.splitlines()[0] == "FAIL builtin:gqa  3 of 3 probes ran in 0.0 s"
    assert line.splitlines()[1].startswith("    FAIL decode-paths  chunks 12+12")
    assert (
        target_line(REPORT.targets[1]).plain == "ERROR org/name  org/name: not in the local cache"
    )
