"""What people reported, acted out: one triage command each, and the answer that was right in the
end.
"""

from __future__ import annotations

import gc
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from triage_reports import REPORTS, Report, table
from triaging import kernels_restored

from attncheck.__main__ import main
from attncheck.attention.interface import attention_table
from attncheck.core.settings import Settings
from attncheck.targets.load import load

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "triage.md"
EXIT = {"CONFIRMED": 1, "NOT REPRODUCED": 0, "EXPECTED NUMERICS": 0, "EXPECTED BEHAVIOUR": 0}


SLOW = "ATTNCHECK_SLOW"
"""The variable of the environment that plays slow reports as well."""


def parameters() -> list[object]:
    """The reports; slow ones are marked, and skipped unless they were asked for."""
    skipped = pytest.mark.skipif(SLOW not in os.environ, reason=f"slow: set {SLOW}=1")
    return [
        pytest.param(each, id=each.command, marks=[pytest.mark.slow, skipped] if each.slow else [])
        for each in REPORTS
    ]


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Targets are given relative to the root."""
    monkeypatch.chdir(ROOT)
    with kernels_restored():
        yield


def test_forty_reports_are_acted_out_and_half_of_them_about_healthy_models() -> None:
    assert len({report.command for report in REPORTS}) == len(REPORTS) >= 40
    assert {report.answer for report in REPORTS} == set(EXIT)
    healthy = sum(report.healthy for report in REPORTS)
    assert abs(2 * healthy - len(REPORTS)) <= 6


def test_the_page_holds_the_table_of_these_reports() -> None:
    assert table(REPORTS) in PAGE.read_text(encoding="utf-8")


def test_a_fault_stays_when_an_earlier_model_is_collected() -> None:
    target = "tests/triage/reported_models.py:window_forgotten"
    load(target, Settings())
    with kernels_restored():
        load(target, Settings())
    load(target, Settings())
    faulty = dict(attention_table())
    gc.collect()
    assert attention_table() == faulty


@pytest.mark.parametrize("report", parameters())
def test_a_report_gets_the_answer_that_the_page_says(
    report: Report, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["triage", *shlex.split(report.command), "--no-progress"])
    said = " ".join(capsys.readouterr().out.replace("`", "").split())
    assert said.startswith(report.answer), said[:300]
    assert report.words in said, said[:600]
    assert code == EXIT[report.answer]
