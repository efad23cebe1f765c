"""`selftest --cases` injects faults, notes every question that catches each, and chooses."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from attncheck.cli.app import app
from attncheck.run.worth.chosen import read as read_choice
from attncheck.run.worth.matrix import read
from attncheck.run.worth.page import BEGIN, END

FAULTS = ("label-shift", "loss-weights", "rows-mixed", "state-dropped")


def selftest(folder: Path) -> str:
    files = ("--record", folder / "cases.jsonl", "--choice", folder / "chosen.json")
    command = ["selftest", "builtin:gqa", "--cases", "--coverage", folder / "cost.md", *files]
    command += ["--probe", "labels", "--probe", "batch-rows"]
    command += [part for fault in FAULTS for part in ("--fault", fault)]
    done = CliRunner().invoke(app, [str(each) for each in command])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("worth")
    (path / "cost.md").write_text("# What it costs\n\nBefore.\n")
    selftest(path)
    return path


def test_each_fault_has_a_row_with_the_questions_that_catch_it(folder: Path) -> None:
    rows = {row.fault: row for row in read(folder / "cases.jsonl").rows}
    assert [*rows] == [*FAULTS]
    assert ("labels", "labels of one row") in rows["label-shift"].caught
    assert ("batch-rows", "another row changed") in rows["rows-mixed"].caught
    assert (rows["state-dropped"].caught, rows["state-dropped"].reason) == (
        (),
        "the cache holds no recurrent state",
    )


def test_a_question_costs_what_it_runs_alone(folder: Path) -> None:
    costs = read(folder / "cases.jsonl").costs
    assert costs["labels", "labels of -#"].forwards >= 1
    alone, changed = (costs["batch-rows", name] for name in ("alone", "another row changed"))
    # both need the batch of three: it is counted once
    assert set(alone.shared) & set(changed.shared)


def test_the_choice_and_the_page_are_written(folder: Path) -> None:
    plan = read_choice((folder / "chosen.json").read_text())
    chosen = {each.probe for each in plan.order if each.chosen}
    assert chosen == {"labels", "batch-rows"}
    assert [*plan.controls] == ["batch-rows", "labels"]
    text = (folder / "cost.md").read_text()
    assert text.startswith("# What it costs\n\nBefore.\n\n<!-- cases -->\nWritten by `attncheck")
    assert text.count(BEGIN) == text.count(END) == 1


def test_a_second_run_goes_on_from_the_record(folder: Path) -> None:
    before = (folder / "cases.jsonl").read_text()
    page = (folder / "cost.md").read_text()
    assert "3 of 3 faults" in selftest(folder)
    assert (folder / "cases.jsonl").read_text() == before
    assert (folder / "cost.md").read_text() == page
