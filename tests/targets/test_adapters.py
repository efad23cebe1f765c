"""Adapters are read from a folder; without PEFT one line says what to install."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from probing import saved_adapter as written

from attncheck.attention.rotary_tables import stored_tables
from attncheck.core.errors import TargetError
from attncheck.core.settings import Settings
from attncheck.targets.load import load

peft = pytest.importorskip("peft", reason="PEFT is not installed")
SHORT = Settings(length=12)


def test_frozen_weights_under_an_adapter_are_no_tables(tmp_path: Path) -> None:
    subject = load(str(written(tmp_path)), SHORT)
    assert not any(
        value.requires_grad
        for name, value in subject.model.named_parameters()
        if "base_layer" in name
    )
    assert stored_tables(subject.model) == []
    assert subject.budget.value < 1e-12


def test_without_peft_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = written(tmp_path)
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(TargetError, match=r"pip install 'attncheck\[adapters\]'"):
        load(str(folder), SHORT)
