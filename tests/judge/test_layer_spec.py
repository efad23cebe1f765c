"""Where a call stands: positions under padding, on a cropped cache and in a buffer with empty
slots; and keys that a steep bias makes vanish, which no mask hides.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attncheck.attention.call import AttentionCall
from attncheck.judge.config_spec import FULL, AttentionSpan
from attncheck.judge.layer_calls import LayerCall
from attncheck.judge.layer_spec import CallPosition, _slopes, is_sink, readable_keys

CPU = torch.device("cpu")


def _rows(standing: CallPosition, reach: AttentionSpan, total: int) -> tuple[list[list[str]], bool]:
    allowed_B1TS, lost = standing.allowed(reach, total, CPU)
    return [
        ["".join(".#"[each] for each in row) for row in rows]
        for rows in allowed_B1TS[:, 0].int().tolist()
    ], lost


def test_a_chunk_on_a_cache_reads_what_was_before_it() -> None:
    assert _rows(CallPosition(new=2, before=3), FULL, 5) == ([["####.", "#####"]], False)


def test_padding_is_never_read_and_its_queries_do_not_count() -> None:
    standing = CallPosition(new=3, padding=(0, 2))
    assert _rows(standing, FULL, 3)[0][1] == ["...", "...", "..#"]
    assert standing.real_BT(CPU).tolist() == [[True, True, True], [False, False, True]]


def test_chunks_of_attention_count_from_the_first_real_token() -> None:
    standing = CallPosition(new=4, before=1, padding=(1,))
    assert _rows(standing, AttentionSpan("chunked", 2), 5)[0][0] == [
        ".#...",
        ".##..",
        "...#.",
        "...##",
    ]


def test_a_cropped_cache_is_enough_for_a_window_and_not_for_the_whole_past() -> None:
    standing = CallPosition(new=1, before=5)
    assert _rows(standing, AttentionSpan("sliding", 3), 3) == ([["###"]], False)
    assert _rows(standing, FULL, 3) == ([["###"]], True)


def test_slots_of_a_buffer_behind_the_newest_token_are_empty() -> None:
    assert _rows(CallPosition(new=1, before=1), FULL, 4) == ([["##.."]], False)


def _softmax(
    module: Any, query_BHTD: Tensor, key_BGSD: Tensor, value_BGSD: Tensor, mask: Tensor, **_: Any
) -> tuple[Tensor, Tensor]:
    weights_BHTS = (query_BHTD @ key_BGSD.mT + mask).softmax(-1)
    return (weights_BHTS @ value_BGSD).transpose(1, 2), weights_BHTS


def test_a_key_whose_weight_a_steep_bias_makes_zero_is_still_read() -> None:
    length, slope = 48, 20.0
    distance_TS = torch.arange(length)[:, None] - torch.arange(length).double()
    mask = (-slope * distance_TS).masked_fill(distance_TS < 0, -torch.inf)[None, None]
    states = torch.randn(3, 1, 1, length, 4, generator=torch.Generator().manual_seed(0)).double()
    call = AttentionCall(torch.nn.Identity(), *states, mask=mask, options={}, kernel=_softmax)
    layer = LayerCall(
        name="layer", index=0, call=call, context_BTHD=torch.zeros(0), stages={}, tables=None
    )
    _, weights_BHTS = call.run()
    assert weights_BHTS[0, 0, -1, 0] == 0
    assert torch.equal(readable_keys(layer)[0, 0], distance_TS >= 0)


def test_slopes_that_all_rows_share_are_read_from_each_row_whatever_its_padding() -> None:
    bias_1HTS = torch.tensor([0.5, 0.25])[:, None, None].double() * torch.arange(6.0)
    bias_1HTS = bias_1HTS.expand(1, 2, 6, 6)
    allowed_B1TS = CallPosition(new=6, padding=(0, 2)).allowed(FULL, 6, CPU)[0]
    states = [torch.zeros(2, 2, 6, 4, dtype=torch.float64)] * 3
    call = AttentionCall(torch.nn.Identity(), *states, mask=None, options={}, kernel=_softmax)
    layer = LayerCall(
        name="layer", index=0, call=call, context_BTHD=torch.zeros(0), stages={}, tables=None
    )
    slopes_H = _slopes(layer, bias_1HTS, allowed_B1TS, 2)
    assert slopes_H is not None
    assert slopes_H.tolist() == pytest.approx([0.5, 0.25])
    assert _slopes(layer, None, allowed_B1TS, 2) is None


def test_a_sink_is_one_number_for_each_head() -> None:
    assert is_sink(torch.zeros(4), 4)
    assert is_sink(torch.zeros(1, 4, 1, 1), 4)
    assert not is_sink(torch.zeros(3), 4)
    assert not is_sink(0.0, 1)
