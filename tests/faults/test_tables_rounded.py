"""tables-rounded is injected and caught by reference; its repair gives tables their digits back."""

from __future__ import annotations

import torch
from injecting import assert_refused, healthy
from probing import assert_caught, loaded

from attncheck.faults import registry


def test_it_is_caught() -> None:
    assert_caught(healthy("builtin:gqa"), "reference", "tables-rounded")


def test_it_needs_tables_or_frequencies() -> None:
    assert_refused("tables-rounded", "builtin:alibi", "keeps no table and no frequencies")


def test_its_repair_gives_back_what_a_cast_has_rounded() -> None:
    subject = loaded("builtin:gqa", dtype="bfloat16")
    table = subject.model.model.rotary_emb.inv_freq
    rounded = table.clone()
    assert table.dtype is torch.bfloat16
    with registry.fault("tables-rounded").repaired(subject):
        assert table.dtype is torch.float32
        assert not torch.equal(table, rounded.float())
        assert torch.equal(table.to(torch.bfloat16), rounded)
        assert torch.arange(300).to(torch.bfloat16).dtype is torch.float32
    assert torch.equal(table, rounded)


def test_the_precision_that_decides_has_the_tables_of_before_the_cast() -> None:
    made = loaded("builtin:gqa", dtype="float64").model.model.rotary_emb.inv_freq
    subject = loaded("builtin:gqa", dtype="bfloat16")
    rounded = subject.model.model.rotary_emb.inv_freq.clone()
    with subject.at("float64") as view:
        assert torch.equal(view.model.model.rotary_emb.inv_freq, made)
    assert torch.equal(subject.model.model.rotary_emb.inv_freq, rounded)
