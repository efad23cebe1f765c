"""Changed cells are told by the shortest rule that gives them."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from attncheck.core.observed_part import How
from attncheck.observation.deviation import Deviation
from attncheck.observation.names import named
from attncheck.observation.rules import CellRule, cell_rule
from attncheck.observation.summary import Extent, grouped_parts

ROWS = 3
LENGTH = 6
PADS = (3, 1, 0)
PADDED = Extent(
    layers=frozenset({0}),
    rows=ROWS,
    length=LENGTH,
    starts=(0,),
    padding=frozenset((row, key) for row, count in enumerate(PADS) for key in range(count)),
)
PACKED = Extent(layers=frozenset({0}), rows=1, length=LENGTH, starts=(0,), documents=(0, 2, 4))
Cell = tuple[int, int, int]


def deviations(how: How, cells: Iterable[Cell]) -> tuple[Deviation, ...]:
    return tuple(
        Deviation(what="cells", how=how, layer=0, row=row, head=0, heads=1, at=at, key=key)
        for row, at, key in cells
    )


def cells_of(rows: Iterable[int], lost: dict[int, range], causal: bool) -> list[Cell]:
    return [
        (row, at, key)
        for row in rows
        for at in range(PADS[row], LENGTH)
        for key in lost[row]
        if not causal or key <= at
    ]


@pytest.mark.parametrize("causal", [True, False])
def test_the_padding_of_another_sequence_is_told(causal: bool) -> None:
    cells = cells_of((1, 2), {1: range(1, 3), 2: range(3)}, causal)
    found = cell_rule(deviations("hidden", cells), PADDED)
    assert found == CellRule("the padding mask is that of sequence 0", "other sequence")
    assert cell_rule(deviations("hidden", cells[1:]), PADDED).kind == ""


@pytest.mark.parametrize("causal", [True, False])
def test_an_inverted_padding_mask_is_told(causal: bool) -> None:
    cells = cells_of(range(ROWS), {row: range(PADS[row], LENGTH) for row in range(ROWS)}, causal)
    members = deviations("hidden", cells)
    found = cell_rule(members, PADDED)
    assert found == CellRule("no query can read a token that is no padding", "inverted")
    assert named(grouped_parts(members, PADDED), PADDED) == ((), "padding-visible")


@pytest.mark.parametrize(
    ("how", "cells", "text"),
    [
        ("hidden", [(3, 2), (5, 4)], "documents begin 1 token late"),
        ("visible", [(2, 0), (2, 1), (4, 3)], "documents begin 1 token late"),
        # a causal mask by positions reads the first token of the next document
        ("visible", [(0, 2), (1, 2), (2, 0), (3, 4)], "documents begin 1 token late"),
        ("hidden", [(1, 0), (3, 2)], "documents begin 1 token early"),
        ("visible", [(2, 1), (4, 3), (5, 3)], "documents begin 1 token early"),
    ],
)
def test_documents_that_begin_at_other_tokens_are_told(
    how: How, cells: list[tuple[int, int]], text: str
) -> None:
    members = deviations(how, [(0, *cell) for cell in cells])
    assert cell_rule(members, PACKED) == CellRule(text, "documents")


def test_a_document_that_reads_all_before_it_does_not_begin_elsewhere() -> None:
    cells = [(0, at, key) for at in range(2, LENGTH) for key in range(at // 2 * 2)]
    assert cell_rule(deviations("visible", cells), PACKED).kind != "documents"


def test_a_causal_mask_on_the_tokens_of_an_encoder_is_told() -> None:
    extent = Extent(layers=frozenset({0}), rows=1, length=LENGTH, starts=(0, 4))
    cells = [(0, at, key) for at in range(LENGTH) for key in range(at % 4 + 1, 4)]
    found = cell_rule(deviations("hidden", cells), extent)
    assert found == CellRule(
        "query i of a call reads only the first i + 1 tokens, as under a causal mask", "causal"
    )
    assert cell_rule(deviations("hidden", cells[1:]), extent).kind == ""


def test_one_token_that_steps_cannot_read_is_no_causal_mask() -> None:
    extent = Extent(layers=frozenset({0}), rows=1, length=LENGTH, starts=(0, 4, 5))
    found = cell_rule(deviations("hidden", [(0, 4, 1), (0, 5, 1)]), extent)
    assert found.text == "token 1 cannot be read by the queries at 4..5"


def test_queries_that_take_the_mask_of_the_first_one_are_told() -> None:
    extent = Extent(layers=frozenset({0}), rows=1, length=LENGTH, starts=(0, 2, 5))
    cells = [(0, at, key) for at, start in ((3, 2), (4, 2)) for key in range(start + 1, at + 1)]
    found = cell_rule(deviations("hidden", cells), extent)
    assert found.text == "queries read only what the first query of their call reads"
    other = cell_rule(deviations("hidden", [(0, 4, 2), *cells]), extent)
    assert other.text != found.text
