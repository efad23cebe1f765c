"""Rotary tables are recorded where modules return them."""

from __future__ import annotations

from probing import loaded

from attncheck.faults.engine.rotary_tables import depend_on_length, tables_of
from attncheck.faults.engine.trusted import Trusted


def test_rotary_tables_are_recorded_where_modules_return_them() -> None:
    trusted = Trusted(loaded("builtin:gqa"))
    row = trusted.subject.inputs.row
    tables = tables_of(trusted, row)
    assert list(tables) == ["model.rotary_emb"]
    assert tables["model.rotary_emb"][0][0].shape[1] == len(row)
    assert not depend_on_length(trusted)
