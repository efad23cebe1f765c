"""A factory is checked again when what it returns has changed, and only then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attncheck.core.settings import Settings
from attncheck.core.verdict import Verdict
from attncheck.run.sweep import Sweep
from attncheck.run.task import Limits
from attncheck.suite.plan import Job

FACTORY = """
from pathlib import Path
import torch
from attncheck.targets.builtin import build

def make():
    model = build(Path(__file__).with_name("which").read_text(), None)
    return model
"""
COUNTING = """
from dataclasses import dataclass
from pathlib import Path
from attncheck.probing import AtMost, Probe

@dataclass(frozen=True, kw_only=True)
class Mine(Probe):
    name = "mine"
    title = "notes that it ran"

    def measure(self, subject):
        with Path(__file__).with_name("ran").open("a") as out:
            out.write("x")
        yield AtMost("always", 0.0, "", limit=1.0)
"""


def test_a_factory_is_compared_by_what_it_returns(tmp_path: Path) -> None:
    (tmp_path / "make.py").write_text(FACTORY)
    (tmp_path / "mine.py").write_text(COUNTING)
    probes = (("mine.py:Mine", dict[str, Any]()), ("future-token", {}))
    job = Job(target=f"{tmp_path}/make.py:make", settings=Settings(), probes=probes, home=tmp_path)

    def checked(which: str) -> tuple[Verdict, int]:
        (tmp_path / "which").write_text(which)
        alone = Sweep(jobs=[job], workers=1, limits=Limits(), folder=tmp_path / "kept")
        ((_, report),) = alone.run()
        return report.verdict, len((tmp_path / "ran").read_text())

    healthy, once = checked("gqa")
    assert healthy is not Verdict.FAIL
    assert checked("gqa") == (healthy, once)
    broken, twice = checked("broken-mask")
    assert broken is Verdict.FAIL
    assert twice > once
    assert checked("gqa")[0] is healthy
