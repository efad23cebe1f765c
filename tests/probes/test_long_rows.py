"""Faults that a short row cannot show: block sizes that no config names, tables that end, positions
that are rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import tiny_llama
from probing import case, finding, loaded

from attncheck.core.errors import Unsupported
from attncheck.core.finding import Verdict, verdict_of
from attncheck.model.compat import CACHE_NAMES
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.long_inputs import kept, long_row
from attncheck.model.subject import Subject


@pytest.fixture
def double() -> Subject:
    subject = Subject(name="llama", model=tiny_llama())
    subject.take(torch.float64)
    return subject


def without_mask(subject: Subject, when: Callable[[int, int], bool]) -> None:
    """The first layer loses its mask for some (queries, cached tokens)."""
    attention = subject.model.model.layers[0].self_attn
    usual = attention.forward

    def forward(*args: Any, **named: Any) -> Any:
        cache = next((named[name] for name in CACHE_NAMES if named.get(name) is not None), None)
        before = int(cache.get_seq_length()) if cache is not None else 0
        if when(named["hidden_states"].shape[1], before):
            named["attention_mask"] = torch.zeros(1, 1, 1, 1, dtype=torch.float64)
        return usual(*args, **named)

    attention.forward = forward


def test_a_block_of_32_that_is_not_masked_shows_in_the_prefixes_alone(double: Subject) -> None:
    without_mask(double, lambda queries, before: queries % 32 == 0)
    found = finding(double, "future-token")
    assert [each.name for each in found.cases if verdict_of(each) is Verdict.FAIL] == [
        "prefixes of a long row"
    ]
    broken = case(found, "prefixes of a long row")
    assert broken.first_position == 0
    assert broken.note == "the first 128 tokens alone"


def test_a_chunk_of_32_on_a_cache_that_is_not_masked(double: Subject) -> None:
    without_mask(double, lambda queries, before: queries >= 32 and before > 0)
    found = finding(double, "decode-paths")
    assert [each.name for each in found.cases if verdict_of(each) is Verdict.FAIL] == [
        "a long row, a long chunk"
    ]
    assert case(found, "a long row, a long chunk").first_position in range(65, 73)


def test_positions_that_are_rounded_far_into_the_context(double: Subject) -> None:
    rotary = double.model.model.rotary_emb
    usual = rotary.forward
    rotary.forward = lambda x, position_ids: usual(
        x, position_ids.to(torch.bfloat16).to(torch.float64)
    )
    found = finding(double, "position-reset")
    assert verdict_of(case(found, "all positions shifted")) is Verdict.PASS
    assert verdict_of(case(found, "all positions shifted far")) is Verdict.FAIL


def test_logits_of_a_long_row_are_kept_at_some_positions_only(double: Subject) -> None:
    row = long_row(double)
    spec = ForwardSpec((row,), chunks=(65, 64, 1))
    everywhere = kept(len(row))
    assert len(row) == 130
    assert {0, 31, 32, 63, 127, 129} <= set(everywhere)
    assert torch.equal(
        double.passes.logits(spec, everywhere), double.logits(spec)[:, list(everywhere)]
    )


def test_a_context_with_little_room_has_a_prefix_too() -> None:
    subject = Subject(name="short", model=tiny_llama(max_position_embeddings=32))
    found = case(finding(subject, "future-token"), "prefixes of a long row")
    assert (verdict_of(found), found.note) == (Verdict.PASS, "the first 31 tokens alone")


def test_a_context_without_room_is_not_called_long() -> None:
    subject = Subject(name="short", model=tiny_llama(max_position_embeddings=24))
    with pytest.raises(Unsupported, match="no more than the usual 24 tokens fit"):
        long_row(subject)


def test_a_model_that_chooses_keys_by_content_is_not_accused_of_how_it_settles_ties() -> None:
    found = case(finding(loaded("config:doge"), "future-token"), "prefixes of a long row")
    assert found.expect == "skip"
    assert "layers choose keys by content" in found.note
