"""Signals: what is finished is reported, marked, and never green."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attncheck.__main__ import main
from attncheck.report.junit import junit
from attncheck.report.record import from_json

PROBE = """
import os, signal
from dataclasses import dataclass
from attncheck.probing import Probe

@dataclass(frozen=True, kw_only=True)
class Mine(Probe):
    name = "mine"
    title = "asks the run to end"

    def measure(self, subject):
        {how}
        yield subject.compare("nothing", *[subject.logits_of_row()] * 2)
"""
SENT = "os.kill(os.getpid(), signal.{name})"
SWALLOWED = f"""try:
            {SENT}
        except BaseException:
            pass
        raise ValueError("lost")"""


@pytest.mark.parametrize(
    ("name", "how", "code", "found_by"),
    [
        ("SIGTERM", SENT, 143, ["kv-repeat"]),
        ("SIGHUP", SENT, 129, ["kv-repeat"]),
        ("SIGINT", SENT, 130, ["kv-repeat"]),
        ("SIGTERM", SWALLOWED, 143, ["kv-repeat", "mine"]),
    ],
)
def test_a_signal_ends_a_run_that_says_how_much_is_done(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    name: str,
    how: str,
    code: int,
    found_by: list[str],
) -> None:
    (tmp_path / "mine.py").write_text(PROBE.format(how=how.format(name=name)))
    report = tmp_path / "report.json"
    probes = ["--probe", "kv-repeat", "--probe", f"{tmp_path}/mine.py:Mine"]
    given = main(["run", "builtin:gqa", "builtin:mha", *probes, "--report", f"json={report}"])
    shown = capsys.readouterr()
    found = json.loads(report.read_text())
    assert (given, found["exit_code"], found["incomplete"]) == (code, code, "0 of 2 targets")
    assert [result["probe"] for result in found["targets"][0]["results"]] == found_by
    assert shown.out.splitlines()[-1].startswith("incomplete: 0 of 2 targets; 1 pass")
    assert "Traceback" not in shown.err
    assert 'message="incomplete: 0 of 2 targets"' in junit(from_json(report.read_text()))


def test_one_target_is_counted_by_its_probes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(PROBE.format(how=SENT.format(name="SIGTERM")))
    probes = ["--probe", "kv-repeat", "--probe", f"{tmp_path}/mine.py:Mine"]
    assert main(["run", "builtin:gqa", *probes, "--format", "json"]) == 143
    assert json.loads(capsys.readouterr().out)["incomplete"] == "1 of 2 probes"


def test_other_commands_end_with_the_code_of_the_signal(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "make.py").write_text(
        "import os, signal\n\ndef make():\n    os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    assert main(["triage", f"{tmp_path}/make.py:make"]) == 143
    assert capsys.readouterr().err.strip() == "attncheck: interrupted"
