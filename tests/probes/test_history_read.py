"""cache-kinds: slots that nothing was written to, and a filled cache that is handed in without
being kept.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from probing import case, finding, loaded

from attncheck.core.finding import Verdict, verdict_of
from attncheck.model.cache_kinds import LONG, new_cache
from attncheck.model.subject import Subject

UNSTORED = "read with `use_cache=False`"
BLOCK = 64


def test_a_long_static_cache_has_slots_that_a_short_one_has_not(subject: Subject) -> None:
    sizes = [
        new_cache(kind, subject.model, rows=1, length=24, dtype=torch.float64)
        for kind in ("static", "long static")
    ]
    short, long = (each.layers[0].max_cache_len for each in sizes)
    assert short < BLOCK < 2 * BLOCK < long - 24 == LONG


def test_empty_slots_behind_the_first_block_show_in_a_long_buffer_alone(subject: Subject) -> None:
    def unwritten_visible(
        module: Any, args: Any, call: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        mask = call.get("attention_mask")
        if mask is None or mask.shape[-1] <= BLOCK:
            return args, call
        seen = mask.clone()
        seen[..., BLOCK:] = True if mask.dtype == torch.bool else 0
        return args, {**call, "attention_mask": seen}

    assert verdict_of(case(finding(subject, "cache-kinds"), "long static cache")) is Verdict.PASS
    injected = loaded("builtin:gqa")
    for layer in injected.model.model.layers:  # type: ignore[union-attr]
        layer.self_attn.register_forward_pre_hook(unwritten_visible, with_kwargs=True)  # type: ignore[union-attr, operator]
    found = finding(injected, "cache-kinds")
    assert found.verdict is verdict_of(case(found, "long static cache")) is Verdict.FAIL
    assert verdict_of(case(found, "static cache")) is Verdict.PASS


def test_a_filled_cache_that_is_not_to_be_kept_is_read_all_the_same(subject: Subject) -> None:
    def forgotten(module: Any, args: Any, call: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        lost = {subject.forward_adapter.cache_name: None} if call.get("use_cache") is False else {}
        return args, {**call, **lost}

    healthy = case(finding(subject, "cache-kinds"), UNSTORED)
    assert verdict_of(healthy) is Verdict.PASS
    assert healthy.note == "12 tokens on the cache, 12 fed"
    injected = loaded("builtin:gqa")
    injected.model.model.register_forward_pre_hook(forgotten, with_kwargs=True)  # type: ignore[union-attr, operator]
    found = finding(injected, "cache-kinds")
    assert found.verdict is verdict_of(case(found, UNSTORED)) is Verdict.FAIL
    assert {each.name for each in found.cases if verdict_of(each) is Verdict.FAIL} == {UNSTORED}


@pytest.mark.parametrize("target", ["config:mamba", "config:t5"])
def test_states_and_decoders_behind_an_encoder_read_it_too(target: str) -> None:
    assert verdict_of(case(finding(loaded(target), "cache-kinds"), UNSTORED)) is Verdict.PASS
