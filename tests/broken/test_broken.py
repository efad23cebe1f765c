"""Broken and hostile inputs: each gets its exit code and its one line, and none is green.

`expected.txt` holds a line for each: name, exit code, what stands on stderr. After a change that
means to change them, write it anew with `python tests/broken/test_broken.py` and read the
difference.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from broken import calls, files
from conftest import tiny_llama

from attncheck.__main__ import main

EXPECTED = Path(__file__).parent / "expected.txt"
QUICK = ("--probe", "kv-repeat", "-q", "--no-progress")
Prepare = Callable[[], None]


def in_folder(make: files.Make) -> Prepare:
    return lambda: make(Path("model"))


def holding(name: str, data: str | bytes) -> Prepare:
    raw = data.encode() if isinstance(data, str) else data
    return lambda: Path(name).write_bytes(raw) and None


def nothing() -> None:
    """What lies in the folder is enough."""


def corpus() -> Iterator[tuple[str, Prepare, tuple[str, ...]]]:
    """Every broken input: its name, what makes it, and the call."""
    for name, make in files.FOLDERS.items():
        yield name, in_folder(make), ("run", "model", *QUICK)
    for name, data in files.GGUF.items():
        yield name, holding("model.gguf", data), ("run", "model.gguf", *QUICK)
    for name in calls.FACTORY_NAMES:
        yield f"factory: {name}", nothing, ("run", f"make.py:{name}", *QUICK)
    for name, text in calls.MODULES.items():
        yield name, holding("mine.py", text), ("run", "mine.py:make", *QUICK)
    for target in calls.TARGETS:
        short = repr(target if len(target) < 60 else f"{target[:20]} and {len(target)} in all")
        yield f"target: {short}", nothing, ("run", *QUICK, "--", target)
    for given in calls.OPTIONS:
        yield f"option: {' '.join(given)}", nothing, ("run", *QUICK, *given)
    for name, text in calls.SUITES.items():
        yield name, holding("suite.yaml", text), ("run", "--suite", "suite.yaml", "-q")
    for name, text in calls.REPORTS.items():
        yield name, holding("report.json", text), ("replay", "report.json")
    for command in calls.COMMANDS:
        yield f"command: {' '.join(command)}", nothing, command


CORPUS = list(corpus())


@contextlib.contextmanager
def scene(folder: Path, healthy: Path) -> Iterator[None]:
    """A folder with a healthy checkpoint and a few files that calls name."""
    shutil.copytree(healthy, folder / "model")
    (folder / "empty").mkdir()
    (folder / "folder.gguf").mkdir()
    (folder / "notes.txt").write_text("a note")
    (folder / "notes.json").write_text("[]")
    (folder / "make.py").write_text(calls.FACTORIES)
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def outcome(prepare: Prepare, call: tuple[str, ...], folder: Path, healthy: Path) -> str:
    """`CODE  LINE` of one call."""
    out, err = io.StringIO(), io.StringIO()
    with scene(folder, healthy):
        prepare()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(list(call))
    assert "Traceback" not in out.getvalue() + err.getvalue()
    said = err.getvalue().removesuffix("\n").replace(str(folder), "HERE")
    return f"{code}  {said}"


@cache
def recorded() -> dict[str, str]:
    lines = EXPECTED.read_text(encoding="utf-8").splitlines() if EXPECTED.exists() else []
    found = (line.partition(" => ") for line in lines)
    return {name: rest for name, _, rest in found}


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("healthy") / "model"
    tiny_llama().save_pretrained(folder)
    return folder


def test_the_corpus_is_large_and_each_name_stands_once() -> None:
    names = [name for name, _, _ in CORPUS]
    assert len(names) == len(set(names)) >= 150
    assert recorded().keys() == set(names)


@pytest.mark.parametrize(("name", "prepare", "call"), CORPUS, ids=[each[0] for each in CORPUS])
def test_a_broken_input_gets_its_code_and_its_line(
    name: str, prepare: Prepare, call: tuple[str, ...], healthy: Path, tmp_path: Path
) -> None:
    found = outcome(prepare, call, tmp_path, healthy)
    assert found == recorded()[name]
    code, _, line = found.partition("  ")
    assert code == "2"
    assert line.startswith("attncheck: ")
    assert line.isprintable()
    assert len(line) < 500


def _write() -> None:
    """Write what is said today, for a person to read the difference."""
    import tempfile

    lines = []
    with tempfile.TemporaryDirectory() as base:
        tiny_llama().save_pretrained(Path(base) / "healthy")
        for number, (name, prepare, call) in enumerate(CORPUS):
            folder = Path(base) / str(number)
            folder.mkdir()
            try:
                said = outcome(prepare, call, folder, Path(base) / "healthy")
            except BaseException as error:
                said = f"RAISED {error!r}"
            lines.append(f"{name} => {said}")
    EXPECTED.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    _write()
