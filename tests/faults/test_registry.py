"""Faults are found by their files, documented under four headings, and listed without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from probing import loaded

from attncheck.core.errors import UsageError
from attncheck.faults import registry
from attncheck.faults.engine.trusted import Trusted
from attncheck.model.forward_spec import ForwardSpec, Mask2D
from attncheck.run.selftest import names

HERE = Path(__file__).parent


def test_every_fault_has_one_file_and_one_test() -> None:
    files = sorted(path.stem for path in registry.HOME.glob("*/[!_]*.py"))
    engine = {path.stem for path in (registry.HOME / "engine").glob("*.py")}
    stems = [stem for stem in files if stem not in engine]
    tests = sorted(path.stem.removeprefix("test_") for path in HERE.glob("test_*.py"))
    assert stems == [test for test in tests if test != "registry"]
    assert sorted(registry.names()) == sorted(stem.replace("_", "-") for stem in stems)


@pytest.mark.parametrize("name", registry.names())
def test_a_fault_is_called_like_its_file_and_looks_like_known_ones(name: str) -> None:
    fault = registry.fault(name)
    assert fault.name == name
    assert set(fault.looks_like) <= set(registry.names()) - {name}


@pytest.mark.parametrize("name", registry.names())
def test_a_page_has_four_headings_and_an_advice(name: str) -> None:
    page = registry.documentation(name)
    lines = page.splitlines()
    assert lines[0] == name
    assert [line for line in lines[1:] if line and not line.startswith(" ")] == list(
        registry.HEADINGS
    )
    assert len(registry.advice(name)) > 30


def test_only_a_fault_has_an_advice() -> None:
    assert registry.advice("explicit positions") == ""


def test_a_mistyped_name_is_helped() -> None:
    for look_up in (registry.documentation, registry.fault):
        with pytest.raises(UsageError, match="did you mean `position-restart`"):
            look_up("position-restrat")


def test_documentation_loads_no_torch() -> None:
    code = (
        "import sys\nfrom attncheck.faults import registry\n"
        "registry.names(), registry.documentation('softmax-scale'), registry.advice('cache-crop')\n"
        "assert 'torch' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_no_two_hypotheses_have_the_same_rank() -> None:
    ranks = [rank for name in registry.names() for rank in registry.fault(name).hypotheses]
    assert len(ranks) == len(set(ranks)) > 30


def test_hypotheses_name_known_faults_in_the_order_of_their_ranks() -> None:
    subject = loaded("builtin:window")
    trusted, half = Trusted(subject), subject.inputs.length // 2
    rows = ((0,) * 3 + (1,) * (subject.inputs.length - 3),)
    padded = ForwardSpec(
        subject.inputs.tokens, chunks=(half, subject.inputs.length - half), mask=Mask2D(rows)
    )
    found = list(dict.fromkeys(guess.fault for guess in registry.hypotheses(trusted, padded)))
    assert set(found) <= set(registry.names())
    assert [name for name in found if name in ("position-restart", "padding-visible")] == [
        "position-restart",
        "padding-visible",
    ]
    assert {"window-off-by-one", "window-ignored", "cache-stale"} <= set(found)


def test_a_diagnosis_may_name_a_fault_that_looks_alike() -> None:
    from attncheck.core.finding import Diagnosis

    offset = Diagnosis(fault="position-offset", how="reproduced")
    assert names("generate-positions", offset)
    assert not names("position-restart", offset)
