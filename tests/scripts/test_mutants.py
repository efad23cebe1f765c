"""The mutants of the core: each is one change that still compiles, and the plan fits the tree."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from scripts.mutants.__main__ import ROOT, main, read_plan
from scripts.mutants.operators import Mutant, mutants_of

SOURCE = '''"""A module."""
LIMIT = 4.0
COUNT: int = 2

def worst(values: list[float], strict: bool = True) -> float:
    """The worst of them."""
    if not strict and values[0] > LIMIT:
        return max(values) + 1
    return values[-1] if strict else f"{COUNT + 1}"
'''


def changes(source: str) -> set[str]:
    return {each.change for each in mutants_of("m.py", source)}


def test_every_kind_of_change_is_made() -> None:
    assert changes(SOURCE) >= {
        "4.0 -> 4000.0",
        "2 -> 3",
        "not strict and values[0] > LIMIT -> ((not strict) or (values[0] > LIMIT))",
        "not strict -> (strict)",
        "values[0] > LIMIT -> (values[0] <= LIMIT)",
        "max(values) + 1 -> (max(values) - 1)",
        "max(values) -> min(values)",
        "1 -> 2",
    }


def test_texts_annotations_and_defaults_stay() -> None:
    assert not {each for each in changes(SOURCE) if "worst of" in each or "COUNT + 1 ->" in each}
    assert "True -> False" not in changes(SOURCE)


def test_a_mutant_changes_its_place_only() -> None:
    for mutant in mutants_of("m.py", SOURCE):
        changed = mutant.applied(SOURCE)
        assert changed != SOURCE
        assert changed.startswith(SOURCE[: mutant.start])
        assert changed.endswith(SOURCE[mutant.stop :])
        ast.parse(changed)


def test_a_mutant_of_a_changed_source_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^m\.py has changed at line 2$"):
        Mutant("m.py", 2, 0, 3, "abc", "x").applied("xyz")


def test_the_plan_names_files_and_tests_that_exist() -> None:
    plan = read_plan()
    assert all((ROOT / file).is_file() for file in plan.tests)
    assert all((ROOT / each).exists() for tests in plan.tests.values() for each in tests)


def test_every_accepted_mutant_is_still_one_and_has_a_reason() -> None:
    plan = read_plan()
    names = {
        mutant.name
        for file in plan.tests
        for mutant in mutants_of(file, (ROOT / file).read_text(encoding="utf-8"))
    }
    assert set(plan.accepted) <= names
    assert all(len(reason) > 20 for reason in plan.accepted.values())


@pytest.mark.parametrize(("code", "share", "ended"), [(0, "0.0%", 1), (1, "100.0%", 0)])
def test_survivors_are_printed_and_decide(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    code: int,
    share: str,
    ended: int,
) -> None:
    """Tests that never fail kill nothing; those that always fail kill all."""

    def exit_code(tree: Path, tests: list[str]) -> int:
        file = Path("attncheck/core/verdict.py")
        whole = (tree / file).read_text() == (ROOT / file).read_text()
        return 0 if whole else code

    monkeypatch.setattr("scripts.mutants.__main__._exit_code", exit_code)
    assert main(["--only", "core/verdict", "--sample", "2", "--jobs", "1"]) == ended
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"2 mutants, {2 * (1 - ended)} killed ({share})"
    survivors = [line for line in lines if line.startswith("survived: attncheck/core/verdict.py:")]
    assert len(survivors) == 2 * ended
