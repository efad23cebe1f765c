"""The first screen of a run, word for word, at three widths, with colour and without."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from attncheck.core.finding import Finding, Trap
from attncheck.core.measurement import Figure
from attncheck.core.verdict import Verdict
from attncheck.report.failures import failure_blocks
from attncheck.report.model import Report, TargetReport
from attncheck.report.screen import amount_text, bar, by_cause, finding_line, times
from attncheck.report.terminal import closing_lines
from tests.report.test_terminal import BYTES, FAILED, PASSED, case

SNAPSHOTS = Path(__file__).parent / "snapshots"
ALSO = replace(
    FAILED,
    probe="position-reset",
    cases=(case("cached, implicit positions vs explicit", 1.77, first_position=12),),
)
SKIPPED = Finding(
    probe="labels",
    verdict=Verdict.SKIP,
    summary="the model computes no loss from `labels`, whatever the labels are",
    skip_reason="the model computes no loss from `labels`, whatever the labels are",
)
TRAPPED = replace(
    PASSED,
    probe="implementations",
    traps=(
        Trap(
            trap="implementations-boolean-4d-mask-eager",
            call="boolean 4D mask, eager",
            reference="builtin:gqa",
            max_abs=4.06,
            advice="forward(attention_mask=<4D booleans>) under eager: pass a float mask",
        ),
    ),
)


def report_of(*findings: Finding) -> Report:
    target = TargetReport(target="org/name", results=findings, settings={"attn": "sdpa"})
    return Report(
        attncheck="0.2.0",
        command="attncheck run org/name",
        started="2026-11-30T00:00:00Z",
        seconds=75.0,
        environment={"transformers": "5.24.0"},
        targets=(target,),
    )


def screen(report: Report, width: int, color: bool = False) -> str:
    """What the terminal shows of a report below the headings of its targets."""
    out = io.StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
        highlight=False,
        emoji=False,
        markup=False,
    )
    for target in report.targets:
        for finding in target.results:
            console.print(finding_line(finding, width))
        for line in failure_blocks(target, width):
            console.print(line)
    for line in closing_lines(report, width):
        console.print(line)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


@pytest.mark.parametrize("color", [False, True])
@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_screen_word_for_word(width: int, color: bool) -> None:
    shown = screen(report_of(PASSED, FAILED, ALSO, BYTES, SKIPPED), width, color)
    path = SNAPSHOTS / f"screen-{width}{'-color' if color else ''}.txt"
    assert shown == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_no_row_is_wider_than_the_terminal(width: int) -> None:
    report = report_of(PASSED, FAILED, ALSO, BYTES, SKIPPED, TRAPPED)
    commands = [line for line in screen(report, width).splitlines() if "attncheck run" not in line]
    assert max(map(len, commands)) <= width


def test_findings_of_one_cause_are_one_block() -> None:
    shown = screen(report_of(FAILED, ALSO), 100)
    assert "FAIL position-restart: seen by decode-paths, position-reset" in shown.splitlines()
    assert [len(group) for group in by_cause([FAILED, ALSO, BYTES])] == [2, 1]
    assert shown.count("Add the length of the cache.") == 1


def test_the_last_lines_name_fault_module_size_and_the_next_command() -> None:
    lines = screen(report_of(PASSED, FAILED), 120).splitlines()
    assert lines[-3:] == [
        "FAIL position-restart in model.layers.0.self_attn: 7 not finite",
        "    attncheck run org/name --probe decode-paths -v",
        "1 pass, 1 fail on 1 model in 75 s",
    ]


def test_a_healthy_run_lists_its_traps_once() -> None:
    lines = screen(report_of(TRAPPED), 120).splitlines()
    assert lines[1:3] == [
        "1 trap of transformers 5.24.0, whatever the model (explain trap-NAME):",
        "  implementations-boolean-4d-mask-eager: forward(attention_mask=<4D booleans>) under "
        "eager: pass a float mask",
    ]
    whole = [line.plain for line in closing_lines(report_of(TRAPPED), 120, whole_traps=True)]
    assert "    builtin:gqa does it as well: 4.06; met by org/name" in whole


@pytest.mark.parametrize(
    ("excess", "words", "cells"),
    [
        (0.0, "0x", "·····"),
        (0.0651, "0.065x", "■····"),
        (0.183, "0.18x", "■■···"),
        (2.5, "2.5x", "■■■··"),
        (9.4e13, "9e13x", "■■■■■"),
        (math.inf, "inf", "■■■■■"),
    ],
)
def test_sizes_are_readable_at_a_glance(excess: float, words: str, cells: str) -> None:
    assert (times(excess), bar(excess)) == (words, cells)


def test_a_probe_without_judged_cases_has_no_amount() -> None:
    assert amount_text([Figure("bytes", 3.0, "B")]).plain.strip() == ""


def test_a_probe_that_runs_everywhere_is_not_offered_to_choose() -> None:
    shown = screen(report_of(PASSED, replace(FAILED, probe="load")), 120)
    assert "    attncheck run org/name -v" in shown.splitlines()


def test_the_command_at_the_end_has_the_options_of_the_run() -> None:
    asked = {"dtype": "bfloat16", "attn": "eager", "seed": 3, "device": "auto", "offline": True}
    asked |= {"prompt": "two words", "compiled": "default", "layers": None}
    target = TargetReport(target="org/name", results=(FAILED,), settings={"asked": asked})
    *_, last = (str(line) for line in failure_blocks(target, 80))
    assert last.splitlines()[-1].strip() == (
        "attncheck run org/name --dtype bfloat16 --attn eager --seed 3 --offline "
        "--prompt 'two words' --compile default --probe decode-paths -v"
    )
