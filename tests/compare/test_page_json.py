"""`compare --format json` carries the name, the sentence, the module and the layer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attncheck.__main__ import main

MAKE = """
import sys
sys.path.insert(0, {tests!r})
from porting.mistakes import flawed
from porting.recipe import recipe_of
from porting.references import reference
from porting.unfused import UnfusedPort

def right():
    return reference("llama")

def good():
    return UnfusedPort(recipe_of(right()))

def bad():
    return UnfusedPort(flawed(recipe_of(right()), "norm-missing", 1))
"""


def compared(left: str, right: str, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    code = main(["compare", left, right, "--no-progress", "--format", "json"])
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    assert found["exit_code"] == code
    return found


def test_a_port_is_named_whichever_side_it_is_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "make.py"
    path.write_text(MAKE.format(tests=str(Path(__file__).parents[1])))
    for sides, reference in (("right bad", "left"), ("bad right", "right")):
        left, right = (f"{path}:{each}" for each in sides.split())
        found = compared(left, right, capsys)
        (fault,) = found["faults"]  # type: ignore[misc]
        assert (found["verdict"], found["exit_code"], found["reference"]) == (
            "different",
            1,
            reference,
        )
        assert (fault["name"], fault["layer"]) == ("norm-missing", 1)  # type: ignore[index]
        assert fault["module"] == "model.layers.1.input_layernorm"  # type: ignore[index]
        assert found["location"] == {"module": fault["module"], "layer": 1}  # type: ignore[index]
        assert fault["sentence"].startswith("layer 1 norm: norm before attention missing (")  # type: ignore[index]


def test_a_correct_port_is_rounding_over_named_calls_with_a_control(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "make.py"
    path.write_text(MAKE.format(tests=str(Path(__file__).parents[1])))
    found = compared(f"{path}:right", f"{path}:good", capsys)
    assert (found["verdict"], found["exit_code"], found["faults"]) == ("rounding", 0, [])
    assert [each["name"] for each in found["calls"]] == ["one forward", "batch of two"]  # type: ignore[attr-defined]
    control = found["control"]
    assert isinstance(control, dict)
    assert control["detected"] is True
