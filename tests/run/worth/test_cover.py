"""The choice of questions: enough faults for few forwards, each shared forward counted once."""

from __future__ import annotations

from attncheck.run.worth.chosen import of_matrix, read, written
from attncheck.run.worth.cover import asked_forwards, caught_by, ranked
from attncheck.run.worth.matrix import Cost, FaultRow, Matrix


def cost(probe: str, question: str, own: int, **shared: int) -> Cost:
    return Cost(probe=probe, question=question, target="t", own=own, shared=shared)


def row(fault: str, *caught: str, random: bool = False) -> FaultRow:
    pairs = tuple((each[0], each) for each in caught)
    return FaultRow(target="t", fault=fault, random=random, caught=pairs)


def matrix(rows: list[FaultRow], *costs: Cost) -> Matrix:
    return Matrix(costs={each.asked: each for each in costs}, rows=rows)


def chosen(found: Matrix, share: float = 1.0) -> list[str]:
    return [each.question for each in ranked(found, share) if each.chosen]


def test_the_cheaper_of_two_equal_questions_is_chosen() -> None:
    found = matrix([row("x", "a1", "b1")], cost("a", "a1", 9), cost("b", "b1", 2))
    assert chosen(found) == ["b1"]


def test_a_forward_that_a_chosen_question_runs_costs_nothing_more() -> None:
    costs = cost("a", "a1", 1, full=8), cost("a", "a2", 0, full=8), cost("b", "b2", 5)
    found = matrix([row("x", "a1"), row("y", "a2", "b2")], *costs)
    assert chosen(found) == ["a2", "a1"]
    # nine forwards, and a control of the probe asks its cheapest question again
    assert asked_forwards(found, [("a", "a1"), ("a", "a2")]) == 9 + 8


def test_a_capability_is_known_when_a_control_runs() -> None:
    found = matrix([], cost("a", "a1", 2, **{"can steps": 5}))
    assert asked_forwards(found, [("a", "a1")]) == 7 + 2


def test_the_question_with_most_forwards_for_its_faults_goes_first() -> None:
    rows = [row(f"x{n}", "a1") for n in range(9)] + [row("y", "b1")]
    costs = cost("a", "a1", 30), cost("b", "b1", 20)
    assert chosen(matrix(rows, *costs)) == ["a1", "b1"]
    assert chosen(matrix(rows, *costs), share=0.9) == ["a1"]


def test_one_question_for_two_takes_their_place_where_it_is_cheaper() -> None:
    # the best by faults for each forward is not the best in the end
    rows = [row("x", "a1", "c1"), row("y", "b1", "c1")]
    costs = cost("a", "a1", 2), cost("b", "b1", 6), cost("c", "c1", 5)
    assert chosen(matrix(rows, *costs)) == ["c1"]


def test_controls_are_known_faults_that_are_always_noticed_own_ones_first() -> None:
    rows = [row("x", "a1"), row("y", "a1"), row("y", "b1"), row("z", "a1", random=True)]
    found = matrix([*rows, row("own", "a1")], cost("a", "a1", 1), cost("b", "b1", 1))
    plan = of_matrix(found, {"a": ["own"]})
    assert [*plan.controls["a"]] == ["own", "x"]
    assert read(written(plan, "a command")) == plan


def test_faults_that_the_questions_miss_are_told() -> None:
    assert caught_by([row("x", "a1"), row("y", "b1")], [("a", "a1")]) == [True, False]
