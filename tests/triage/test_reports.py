"""What people reported, acted out: one triage command each, and the answer that was right in the
end.
"""

from __future__ import annotations

import contextlib
import gc
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from attncheck.__main__ import main
from attncheck.attention.interface import EAGER, attention_table
from attncheck.core.settings import Settings
from attncheck.targets.load import load

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "triage.md"
EXIT = {"CONFIRMED": 1, "NOT REPRODUCED": 0, "EXPECTED NUMERICS": 0, "EXPECTED BEHAVIOUR": 0}


def reports() -> list[tuple[str, str, str]]:
    """(command, answer, words that must be in it) of every report in docs/triage.md."""
    rows = re.findall(
        r"^\|[^|]*\| `attncheck (triage [^`]*)` \| ([A-Z ]+): `([^`]*)`",
        PAGE.read_text(encoding="utf-8"),
        re.M,
    )
    return [(command, answer, words) for command, answer, words in rows]


@contextlib.contextmanager
def kernels_restored() -> Iterator[None]:
    """Put kernels back that a faulty model changes for the rest of the process."""
    table = attention_table()
    kernels = dict(table)
    eager = {
        module: module.eager_attention_forward
        for module in list(sys.modules.values())
        if hasattr(module, EAGER)
    }
    yield
    table.update(kernels)
    for module, kernel in eager.items():
        setattr(module, EAGER, kernel)


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Targets are given relative to the root."""
    monkeypatch.chdir(ROOT)
    with kernels_restored():
        yield


def test_at_least_twelve_reports_are_acted_out() -> None:
    assert len({command for command, _, _ in reports()}) >= 12
    assert {answer for _, answer, _ in reports()} == set(EXIT)


def test_a_fault_stays_when_an_earlier_model_is_collected() -> None:
    target = "tests/triage/reported_models.py:window_forgotten"
    load(target, Settings())
    with kernels_restored():
        load(target, Settings())
    load(target, Settings())
    faulty = dict(attention_table())
    gc.collect()
    assert attention_table() == faulty


@pytest.mark.parametrize(
    ("command", "answer", "words"), reports(), ids=[command for command, _, _ in reports()]
)
def test_a_report_gets_the_answer_that_the_page_says(
    command: str, answer: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main([*shlex.split(command), "--no-progress"])
    said = " ".join(capsys.readouterr().out.replace("`", "").split())
    assert said.startswith(answer), said[:300]
    assert words in said, said[:600]
    assert code == EXIT[answer]
