"""Signals: what is finished is reported, marked, and never green."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from attncheck.__main__ import main
from attncheck.report.junit import junit
from attncheck.report.record import from_json

PROBE = """
import os, signal
from dataclasses import dataclass
from attncheck.probing import ForwardSpec, Probe

@dataclass(frozen=True, kw_only=True)
class Mine(Probe):
    name = "mine"
    title = "asks the run to end"

    def measure(self, subject):
        {how}
        row = subject.inputs.tokens
        yield subject.compare_forwards("chunks", ForwardSpec(row, chunks=(5, 19)), ForwardSpec(row))
"""
SENT = "os.kill(os.getpid(), signal.{name})"
SWALLOWED = f"""try:
            {SENT}
        except BaseException:
            pass
        raise ValueError("lost")"""


@pytest.fixture(autouse=True)
def usual_handlers() -> Iterator[None]:
    """Signals as a terminal leaves them: `nohup` and `&` have SIGHUP and SIGINT ignored."""
    usual = {signal.SIGHUP: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


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


@pytest.mark.parametrize("name", ["SIGHUP", "SIGTERM"])
def test_a_signal_that_is_ignored_ends_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    (tmp_path / "mine.py").write_text(PROBE.format(how=SENT.format(name=name)))
    number = getattr(signal, name)
    before = signal.signal(number, signal.SIG_IGN)
    try:
        code = main(["run", "builtin:gqa", "--probe", f"{tmp_path}/mine.py:Mine"])
    finally:
        assert signal.signal(number, before) is signal.SIG_IGN
    assert code == 0
    assert "incomplete" not in capsys.readouterr().out


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


STUCK = """
import ctypes, os, signal, threading, time
from attncheck.cli.stopping import last_resort, stoppable

def leave(number):
    print("left", number, flush=True)
    return 43

libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
with stoppable(), last_resort(leave, patience=0.2):
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)
"""
ANSWERING = """
import os, signal, time
from attncheck.cli.stopping import last_resort, stoppable

try:
    with stoppable(), last_resort(lambda number: 43, patience=0.2):
        os.kill(os.getpid(), signal.SIGTERM)
except KeyboardInterrupt as stop:
    time.sleep(0.5)
    print("stopped", stop.code)
"""


@pytest.mark.parametrize(
    ("code", "out", "ended"), [(STUCK, "left 15\n", 43), (ANSWERING, "stopped 143\n", 0)]
)
def test_a_lock_below_python_cannot_hold_up_a_signal(code: str, out: str, ended: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout, done.returncode, done.stderr) == (out, ended, "")
