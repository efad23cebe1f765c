"""A run in parts: every name once, parts of one size, and little moves when the names change."""

from __future__ import annotations

import pytest

from attncheck.core.errors import UsageError
from attncheck.core.shard import Shard, parsed

NAMES = [f"org/model-{number}" for number in range(103)]


def parts(names: list[str], count: int) -> list[frozenset[str]]:
    return [Shard(index=index, count=count).names(names) for index in range(1, count + 1)]


@pytest.mark.parametrize("count", [1, 2, 7, 103, 150])
def test_every_name_is_in_one_part_and_parts_are_of_one_size(count: int) -> None:
    found = parts(NAMES, count)
    assert sorted(name for part in found for name in part) == sorted(NAMES)
    sizes = {len(part) for part in found}
    assert max(sizes) - min(sizes) <= 1


def test_the_order_of_the_names_and_repeats_change_nothing() -> None:
    assert parts(NAMES, 4) == parts([*reversed(NAMES), NAMES[0]], 4)


def test_one_name_more_moves_at_most_one_from_each_part() -> None:
    before, after = parts(NAMES, 5), parts([*NAMES, "org/new"], 5)
    assert all(len(old - new) <= 1 for old, new in zip(before, after, strict=True))


@pytest.mark.parametrize("text", ["", "0/4", "5/4", "1", "1/", "-1/4", "a/b", "1/0", "1/4/2"])
def test_what_is_no_shard_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"expected I/N with I from 1 to N, such as 1/4"):
        parsed(text)


def test_a_shard_is_written_as_it_is_read() -> None:
    assert str(parsed(" 2/8 ")) == "2/8"
