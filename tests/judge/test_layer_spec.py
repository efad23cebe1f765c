"""Where a call stands: positions under padding, on a cropped cache and in a buffer with empty
slots.
"""

from __future__ import annotations

import torch

from attncheck.judge.config_spec import FULL, AttentionSpan
from attncheck.judge.layer_spec import CallPosition

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
