"""The rates, the tables and the misses of a batch, and the file that keeps it."""

from __future__ import annotations

import json
from pathlib import Path

from attncheck.run.random_faults import page
from attncheck.run.random_faults.batch import read
from attncheck.run.random_faults.parts import parse
from attncheck.run.random_faults.trial import Trial

FAULT = parse("what=keys,how=zero,when=step")
GOOD = {
    "said": "decode-paths: reproduced cache-stale at model.layers.0",
    "right": True,
    "placed": True,
}
FALSE = {"said": "padding: reproduced rows-mixed at no place", "right": False, "placed": False}
TRIALS = [
    Trial(target="config:a", number=0, fault=FAULT, moved=1.0, said=(GOOD,)),
    Trial(target="config:a", number=1, fault=FAULT, moved=1.0, said=(FALSE, GOOD)),
    Trial(target="config:b", number=2, fault=FAULT, moved=1.0),
    Trial(target="config:b", number=3, fault=None, reason="no drawn fault shows"),
]


def test_rates_count_explanations_of_caught_faults() -> None:
    assert page.rates(TRIALS) == {
        "caught": (2, 3),
        "explained": (2, 2),
        "placed": (2, 2),
        "wrong": (1, 2),
    }
    assert page.sentence(TRIALS).startswith("caught 2/3 (66.7 %), explained 2/2 (100.0 %)")


def test_the_section_lists_every_miss() -> None:
    text = page.section(TRIALS, "attncheck selftest --random 4")
    assert "| a | 2/2 | 2/2 | 2/2 | 1/2 |" in text
    assert "| b | 0/1 | 0/0 | 0/0 | 0/0 |" in text
    assert "- config:b what=keys,how=zero,when=step: NOT CAUGHT" in text
    assert "- config:a what=keys,how=zero,when=step: WRONGLY EXPLAINED" in text
    assert text.count("\n- config:") == 2


def test_a_section_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "coverage.md"
    path.write_text("# What the probes catch\n\nA table.\n", encoding="utf-8")
    for number in (3, 4):
        page.written(path, page.section(TRIALS[:number], f"--random {number}"))
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# What the probes catch\n\nA table.\n\n## Random faults\n")
    assert text.count(page.HEADING) == 1
    assert "--random 4" in text


def test_trials_come_back_from_their_file(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    path.write_text("".join(json.dumps(each.as_dict()) + "\n" for each in TRIALS), encoding="utf-8")
    assert read(path) == TRIALS
    assert read(tmp_path / "missing.jsonl") == []
