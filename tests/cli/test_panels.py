"""Help in panels: few options each, the same ones wherever a model is loaded, and fast."""

from __future__ import annotations

import re
import subprocess
import sys
import time

import pytest

from attncheck.__main__ import main

Capture = pytest.CaptureFixture[str]
LOADING = ("run", "mask", "record", "triage", "compare", "replay", "selftest")
COMMANDS = (*LOADING, "probes", "explain", "init", "validate", "schema", "doctor")


def panels(text: str) -> dict[str, list[str]]:
    """The options of each panel of a help page."""
    found: dict[str, list[str]] = {}
    title = ""
    for line in text.splitlines():
        if line.endswith(":") and not line.startswith(" "):
            title = line.rstrip(":")
        elif line.startswith("  ") and line[2:3] not in (" ", "") and title:
            found.setdefault(title, []).append(line.split()[0].rstrip(","))
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_panels_of_at_most_a_dozen_options(command: str, capsys: Capture) -> None:
    assert main([command, "--help"]) == 0
    shown = panels(capsys.readouterr().out)
    assert max(map(len, shown.values())) <= 12
    assert "-h" in shown["Options"]


@pytest.mark.parametrize("command", LOADING)
def test_every_command_that_takes_a_target_loads_it_by_the_same_options(
    command: str, capsys: Capture
) -> None:
    main([command, "--help-all"])
    shown = panels(capsys.readouterr().out)
    flags = {
        *("--attn", "--dtype", "--device", "--device-map", "--revision"),
        *("--trust-remote-code", "--random-init", "--layers", "--offline"),
    }
    assert flags <= set(shown["Model"])
    assert {"--seed", "--prompt", "--length"} <= set(shown["Input"])


def test_the_help_of_run_fits_on_one_screen(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options that few people need are named there; `--help-all` has their texts too."""
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["run", "--help"]) == 0
    short = capsys.readouterr().out
    assert main(["run", "--help-all"]) == 0
    whole = capsys.readouterr().out
    assert len(short.splitlines()) <= 45
    assert "More (--help-all): --" in short
    assert set(re.findall(r"--[a-z-]+", whole)) <= {"--help-all", *re.findall(r"--[a-z-]+", short)}
    assert "Run only suite entries with this tag" in whole
    assert "Run only suite entries with this tag" not in short


def test_the_list_of_commands_has_panels(capsys: Capture) -> None:
    assert main(["--help"]) == 0
    shown = panels(capsys.readouterr().out)
    assert {name for listed in shown.values() for name in listed} >= set(COMMANDS)
    assert max(map(len, shown.values())) <= 12


def test_help_is_fast() -> None:
    started = time.monotonic()
    subprocess.run([sys.executable, "-m", "attncheck", "--help"], check=True, capture_output=True)
    bare = time.monotonic()
    subprocess.run([sys.executable, "-c", "import typer"], check=True, capture_output=True)
    assert bare - started < 1.0 + 3 * (time.monotonic() - bare)
