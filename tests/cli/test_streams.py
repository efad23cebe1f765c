"""Our own output stays apart from a model's, and a reader that leaves changes no exit code."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from attncheck.__main__ import main
from attncheck.cli.streams import SteadyStream, guarded

LOUD = """
import os
from attncheck.targets.builtin import build

def make():
    print("hello from the factory")
    model = build("gqa", None)
    inner = type(model).forward

    class Loud(type(model)):
        def forward(self, *args, **kwargs):
            print("hello")
            os.write(1, b"hello from below\\n")
            return inner(self, *args, **kwargs)

    model.__class__ = Loud
    return model
"""


class Broken(io.StringIO):
    """A stream whose writes fail after so many characters."""

    def __init__(self, room: int, number: int) -> None:
        super().__init__()
        self.room, self.number = room, number

    def write(self, text: str) -> int:
        self.room -= len(text)
        if self.room < 0:
            raise OSError(self.number, os.strerror(self.number))
        return super().write(text)


@pytest.mark.parametrize(
    ("number", "said"),
    [(errno.EPIPE, ""), (errno.ENOSPC, "attncheck: stdout: not written: No space left on device")],
)
def test_a_run_ends_with_its_own_code_when_nobody_reads(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, number: int, said: str
) -> None:
    out = Broken(40, number)
    monkeypatch.setattr(sys, "stdout", out)
    assert main(["run", "builtin:broken-positions", "--probe", "decode-paths"]) == 1
    assert capsys.readouterr().err.strip() == said
    assert sys.stdout is out


def test_a_model_that_prints_harms_no_json(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(LOUD)
    run = [sys.executable, "-m", "attncheck", "run", f"{tmp_path}/loud.py:make"]
    done = subprocess.run(
        [*run, "--probe", "kv-repeat", "--format", "json", "--report", "json=/dev/stdout"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    # The report at the end, and the same again as what the command prints.
    first, second = done.stdout.split("\n}\n{\n")
    assert json.loads(first + "\n}") == json.loads("{\n" + second)
    assert {"hello from the factory", "hello", "hello from below"} <= set(done.stderr.splitlines())


def test_what_cannot_be_encoded_is_escaped() -> None:
    raw = io.BytesIO()
    stream = SteadyStream(io.TextIOWrapper(raw, encoding="ascii"))
    stream.write("ok \N{GREATER-THAN OR EQUAL TO} 1")
    stream.flush()
    assert raw.getvalue() == b"ok \\u2265 1"


def test_a_model_cannot_end_the_process() -> None:
    leave = os._exit
    with guarded(), pytest.raises(SystemExit, match=r"os\._exit\(0\)"):
        os._exit(0)
    assert os._exit is leave
