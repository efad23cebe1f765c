"""rope-scale-switch is injected, caught by repeatability and named."""

from __future__ import annotations

from injecting import assert_found, healthy

from attncheck.faults.engine.trusted import Trusted
from attncheck.faults.positions.rope_scale_switch import tables_depend_on_length, tables_of


def test_it_is_caught_named_and_located() -> None:
    assert_found("rope-scale-switch", "builtin:gqa", "repeatability", "model.layers.0.self_attn")


def test_rotary_tables_are_recorded_where_modules_return_them() -> None:
    trusted = Trusted(healthy("builtin:gqa"))
    row = trusted.subject.inputs.row
    tables = tables_of(trusted, row)
    assert list(tables) == ["model.rotary_emb"]
    assert tables["model.rotary_emb"][0][0].shape[1] == len(row)
    assert not tables_depend_on_length(trusted)
