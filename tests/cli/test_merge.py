"""`attncheck run --shard` and `attncheck merge`: the parts give the report of one run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from attncheck.__main__ import main

PASSING = {"seconds", "load_seconds", "command", "started"}


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def lasting(data: Any) -> Any:
    """A report without what is different in every run."""
    if isinstance(data, dict):
        return {name: lasting(value) for name, value in data.items() if name not in PASSING}
    return [lasting(each) for each in data] if isinstance(data, list) else data


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "suite.yaml").write_text(
        "models: [{target: builtin:gqa, settings: {attn: eager}}, builtin:broken-mask, builtin:mha]\n"
        "probes: [kv-repeat, future-token]\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_shards_and_merge_give_the_report_of_one_run(
    capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = ("run", "--suite", "suite.yaml", "--no-progress", "--report")
    assert run(capsys, *suite, "json=one.json")[0] == 1
    codes = []
    for index in (1, 2, 3, 4):
        monkeypatch.setenv("ATTNCHECK_SHARD", f"{index}/4")
        codes.append(run(capsys, *suite, f"json=part{index}.json")[0])
    assert sorted(codes) == [0, 0, 0, 1]
    monkeypatch.delenv("ATTNCHECK_SHARD")
    reports = [f"{kind}=all.{kind}" for kind in ("json", "junit", "sarif", "markdown", "html")]
    asked = [word for each in reports for word in ("--report", each)]
    parts = [f"part{index}.json" for index in (3, 1, 4, 2)]
    code, shown, _ = run(capsys, "merge", *parts, *asked)
    assert code == 1
    assert "FAIL builtin:broken-mask" in shown
    assert "on 3 models" in shown
    one, whole = (json.loads(Path(name).read_text()) for name in ("one.json", "all.json"))
    assert lasting(whole) == lasting(one)
    assert all((folder / f"all.{kind}").stat().st_size > 500 for kind in ("junit", "sarif", "html"))
    assert main(["validate", "part1.json", "all.json"]) == 0
    assert run(capsys, "merge", *parts, "--write-baseline", "known.json")[0] == 1
    assert run(capsys, "merge", *parts, "--baseline", "known.json")[0] == 0
    code, shown, _ = run(capsys, "merge", "part1.json", "part3.json", "-q")
    assert code == 2
    assert "incomplete: shards 2/4, 4/4 missing; " in shown
    said = run(capsys, "merge", "part1.json", "part1.json")
    assert said[::2] == (2, "attncheck: shard 1/4 is given twice: part1.json and part1.json\n")


def test_a_suite_names_its_shard_and_an_empty_one_is_no_failure(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    Path("suite.yaml").write_text("models: [builtin:gqa]\nprobes: [kv-repeat]\nshard: 1/2\n")
    code, shown, _ = run(capsys, "run", "--suite", "suite.yaml", "-q")
    assert (code, shown.splitlines()[0]) == (0, "note: shard 1/2 has none of the 1 targets")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--shard", "3/2"), "--shard 3/2: expected I/N with I from 1 to N, such as 1/4"),
        (
            ("--shard", "1/2", "--write-baseline", "b.json"),
            "--write-baseline needs the whole run: give it to `attncheck merge`",
        ),
        (("--targets", "none.txt"), "none.txt: cannot be read: No such file or directory"),
    ],
)
def test_wrong_use_is_one_line(
    capsys: pytest.CaptureFixture[str], folder: Path, options: tuple[str, ...], message: str
) -> None:
    code, _, said = run(capsys, "run", "builtin:gqa", *options)
    assert (code, said) == (2, f"attncheck: {message}\n")


def test_merge_loads_no_torch(folder: Path) -> None:
    (folder / "a.json").write_text("{}")
    ask = "import sys; from attncheck.__main__ import main; main(['merge', 'a.json']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        0,
        "attncheck: a.json: not a report of this tool (ValueError: not a report: expected `schema` to be `attncheck/1`)\n",
    )
