"""Ranks without torchrun: a single process, and a wrong limit."""

from __future__ import annotations

import pytest

from attncheck.core.errors import UsageError
from attncheck.distributed import ranks


def test_a_single_process_just_computes() -> None:
    assert ranks.by_first("a sum", lambda: 3) == 3
    assert ranks.gathered("a number", 4) == (4,)
    assert ranks.first()


@pytest.mark.parametrize("given", ["soon", "0", "-1", "nan"])
def test_the_limit_is_a_number_of_seconds(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("ATTNCHECK_TP_TIMEOUT", given)
    with pytest.raises(
        UsageError, match=f"ATTNCHECK_TP_TIMEOUT={given}: expected a number of seconds above 0"
    ):
        ranks._limit()


def test_another_number_of_processes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(UsageError, match="tp=2 needs 2 processes: start it with: torchrun"):
        ranks.join(2)
