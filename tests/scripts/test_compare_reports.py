"""Comparison of two runs: what counts as a difference, and what does not."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from scripts.compare_reports import main

SELFTEST = """\
builtin:gqa
fault                    caught by          named                              located                               s
causal-mask-missing      future-token       yes                                model.layers.0.self_attn            0.3
cache-crop               cache-kinds        yes                                                                    0.1
generate-positions       generate           as position-offset                 model.layers.0.self_attn            0.3
position-ignores-padding -  moving every position changes nothing here
softmax-scale            MISSED                                                                                    0.4

4 planted, 3 caught, 3 named, MISSED: softmax-scale
"""


def result(probe: str) -> dict[str, Any]:
    return {
        "probe": probe,
        "verdict": "fail",
        "summary": "prose",
        "seconds": 0.1,
        "cases": [
            {"name": "steps", "verdict": "fail", "max_abs": 1.0, "budget": 1e-12, "value": None},
            {"name": "chunks", "verdict": "pass", "max_abs": "nan", "budget": 0, "value": 2},
        ],
        "controls": [{"fault": "cache-stale", "detected": True}],
        "diagnosis": {"fault": "position-restart", "how": "reproduced", "advice": "prose"},
        "location": {"module": "model.layers.0", "layer": 0},
    }


def report() -> dict[str, Any]:
    probes = [result("decode-paths"), {**result("padding"), "diagnosis": None, "location": None}]
    targets = [
        {"target": "config:llama", "verdict": "fail", "results": probes},
        {"target": "config:opt", "verdict": "error", "results": []},
    ]
    return {"schema": "attncheck/1", "targets": targets}


def lines_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], after: dict[str, Any], *options: str
) -> list[str]:
    before, other = tmp_path / "before.json", tmp_path / "after.json"
    before.write_text(json.dumps(report()))
    other.write_text(json.dumps(after))
    code = main([str(before), str(other), *options])
    *lines, count = capsys.readouterr().out.splitlines()
    assert code == bool(lines)
    assert count.startswith(f"{len(lines)} difference")
    return lines


def changed(path: str, value: object) -> dict[str, Any]:
    after = report()
    place: Any = after["targets"]
    *parts, last = path.split(".")
    for part in parts:
        place = place[int(part) if part.isdigit() else part]
    place[last] = value
    return after


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        ("0.verdict", "pass", "config:llama | verdict: fail -> pass"),
        ("0.results.0.verdict", "warn", "config:llama | decode-paths | verdict: fail -> warn"),
        (
            "0.results.0.cases.1.verdict",
            "fail",
            "config:llama | decode-paths | case chunks | verdict: pass -> fail",
        ),
        (
            "0.results.0.diagnosis.fault",
            "cache-stale",
            "config:llama | decode-paths | diagnosis | fault: position-restart -> cache-stale",
        ),
        (
            "0.results.0.diagnosis.how",
            "repaired",
            "config:llama | decode-paths | diagnosis | how: reproduced -> repaired",
        ),
        (
            "0.results.0.location.layer",
            1,
            "config:llama | decode-paths | location | layer: 0 -> 1",
        ),
        (
            "0.results.1.location",
            {"module": "model.norm", "layer": None},
            "config:llama | padding | location | module: null -> model.norm",
        ),
        (
            "0.results.0.controls.0.detected",
            False,
            "config:llama | decode-paths | control cache-stale | detected: true -> false",
        ),
    ],
)
def test_each_compared_value_gives_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], path: str, value: object, line: str
) -> None:
    assert lines_of(tmp_path, capsys, changed(path, value)) == [line]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("0.results.0.summary", "rewritten"),
        ("0.results.0.seconds", 9.0),
        ("0.results.0.diagnosis.advice", "rewritten"),
        ("0.results.0.cases.0.max_abs", 2.0),
    ],
)
def test_prose_durations_and_by_default_numbers_are_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], path: str, value: object
) -> None:
    assert lines_of(tmp_path, capsys, changed(path, value)) == []


def test_numbers_are_exact_unless_a_tolerance_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    after = changed("0.results.0.cases.0.max_abs", 1.001)
    line = "config:llama | decode-paths | case steps | max_abs: 1.0 -> 1.001"
    assert lines_of(tmp_path, capsys, after, "--numbers") == [line]
    assert lines_of(tmp_path, capsys, after, "--numbers", "--numbers-tolerance", "0.01") == []
    finite = changed("0.results.0.cases.1.max_abs", 0.0)
    assert len(lines_of(tmp_path, capsys, finite, "--numbers", "--numbers-tolerance", "9")) == 1


def test_a_missing_probe_is_one_line_and_a_renamed_case_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shorter = report()
    del shorter["targets"][0]["results"][0]
    missing = "config:llama | decode-paths | verdict: fail -> (absent)"
    assert lines_of(tmp_path, capsys, shorter) == [missing]
    renamed = changed("0.results.0.cases.0.name", "one-token steps")
    assert lines_of(tmp_path, capsys, renamed) == [
        "config:llama | decode-paths | case steps | verdict: fail -> (absent)",
        "config:llama | decode-paths | case one-token steps | verdict: (absent) -> fail",
    ]


def test_a_missing_target_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shorter = report()
    del shorter["targets"][0]
    assert lines_of(tmp_path, capsys, shorter) == ["config:llama | verdict: fail -> (absent)"]


def test_a_folder_of_reports_equals_one_report_of_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "sweep"
    folder.mkdir()
    for target in reversed(report()["targets"]):
        name = target["target"].replace(":", "_")
        (folder / f"{name}.json").write_text(json.dumps({"targets": [target]}))
    whole = tmp_path / "whole.json"
    whole.write_text(json.dumps(report()))
    assert main([str(folder), str(whole)]) == 0
    assert capsys.readouterr().out.startswith("0 differences in ")


def test_a_target_that_occurs_twice_is_compared_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    twice = report()
    twice["targets"].append(copy.deepcopy(twice["targets"][0]))
    assert lines_of(tmp_path, capsys, twice) == ["config:llama #2 | verdict: (absent) -> fail"]


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ("0.3", "9.9", []),
        ("  moving every position", "  no effect: every position", []),
        (
            "future-token       yes",
            "future-token       no ",
            ["builtin:gqa | causal-mask-missing | named: yes -> no"],
        ),
        (
            "softmax-scale            MISSED     ",
            "softmax-scale            window     ",
            ["builtin:gqa | softmax-scale | caught by: MISSED -> window"],
        ),
        (
            "yes                                model.layers.0.self_attn            0.3",
            "yes                                model.a_long_name_of_a_layer.0.attention 0.3",
            [
                "builtin:gqa | causal-mask-missing | located: "
                "model.layers.0.self_attn -> model.a_long_name_of_a_layer.0.attention"
            ],
        ),
    ],
)
def test_tables_of_selftest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, lines: list[str]
) -> None:
    assert old in SELFTEST
    before, after = tmp_path / "before.txt", tmp_path / "after.txt"
    before.write_text(SELFTEST)
    after.write_text(SELFTEST.replace(old, new))
    code = main([str(before), str(after)])
    *shown, count = capsys.readouterr().out.splitlines()
    assert (shown, code) == (lines, bool(lines))
    assert count.endswith("in 13 compared values")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("r.json", "{", "no valid JSON"),
        ("r.json", "[]", "no report of `attncheck run` (it has no list `targets`)"),
        ("t.txt", "hello", "neither a JSON report nor a table of `attncheck selftest`"),
        ("missing.json", None, "No such file"),
    ],
)
def test_an_unreadable_input_is_named(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    content: str | None,
    message: str,
) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_text(content)
    assert main([str(file), str(file)]) == 2
    error = capsys.readouterr().err
    assert str(file) in error
    assert message in error
