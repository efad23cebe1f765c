"""Without a compiler: what is to be compiled runs as it is written, and is compiled afterwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attncheck.model.switching import uncompiled


def test_nothing_is_compiled_before_the_first_call_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def compiler(model: Any, **options: Any) -> Any:
        asked.append((model, options))
        return lambda number: 100 * number

    monkeypatch.setattr(torch, "compile", compiler)

    def plus_one(number: int) -> int:
        return number + 1

    with uncompiled():
        kept = torch.compile(plus_one, dynamic=False)
        assert kept(1) == 2
        with uncompiled():
            assert torch.compile(dynamic=True)(plus_one)(2) == 3
    assert asked == []
    assert torch.compile is compiler
    assert [kept(1), kept(2)] == [100, 200]
    assert asked == [(plus_one, {"dynamic": False})]
    with uncompiled():
        assert kept(1) == 2
