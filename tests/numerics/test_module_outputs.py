"""Fingerprints of what leaves modules: one per token, however a forward is cut.

Axes: B batch, T positions, W hidden width, K numbers kept for each position.
"""

from __future__ import annotations

import torch

from attncheck.numerics.module_outputs import KEPT, Recorder, recording

EVENT = ("layer", "out")


def recorded(*lengths: int) -> tuple[Recorder, torch.Tensor]:
    hidden_BTW = torch.randn(2, sum(lengths), 6, generator=torch.Generator().manual_seed(0))
    recorder = Recorder()
    for part_BTW in hidden_BTW.split(lengths, 1):
        recorder.note(EVENT, (part_BTW, None))
    return recorder, hidden_BTW


def test_pieces_have_the_fingerprint_of_the_whole() -> None:
    whole_BTK = recorded(8)[0].print_BTK(EVENT, (2, 8))
    pieces_BTK = recorded(5, 1, 2)[0].print_BTK(EVENT, (2, 8))
    assert whole_BTK is not None
    assert pieces_BTK is not None
    assert whole_BTK.shape == (2, 8, KEPT)
    assert torch.allclose(whole_BTK, pieces_BTK, atol=1e-6)


def test_streams_one_after_the_other_belong_to_their_tokens() -> None:
    recorder, hidden_BTW = recorded(8)
    streams_BTK = recorder.print_BTK(EVENT, (2, 4))
    assert streams_BTK is not None
    assert streams_BTK.shape == (2, 4, 2 * KEPT)
    one, other = Recorder(), Recorder()
    one.note(EVENT, hidden_BTW[:, :4])
    other.note(EVENT, hidden_BTW[:, 4:])
    for found_BTK, stream in zip(streams_BTK.split(KEPT, -1), (one, other), strict=True):
        right_BTK = stream.print_BTK(EVENT, (2, 4))
        assert right_BTK is not None
        assert torch.allclose(found_BTK, right_BTK, atol=1e-6)


def test_no_vector_per_token_is_no_fingerprint() -> None:
    assert recorded(7)[0].print_BTK(EVENT, (2, 4)) is None
    assert recorded(3)[0].print_BTK(EVENT, (2, 4)) is None
    assert recorded(4)[0].print_BTK(EVENT, (1, 4)) is None


def test_only_the_last_call_of_a_module_that_ran_before_counts() -> None:
    recorder, hidden_BTW = recorded(4, 4)
    last = Recorder()
    last.note(EVENT, hidden_BTW[:, 4:])
    found_BTK, right_BTK = recorder.print_BTK(EVENT, (2, 4)), last.print_BTK(EVENT, (2, 4))
    assert found_BTK is not None
    assert right_BTK is not None
    assert torch.allclose(found_BTK, right_BTK, atol=1e-6)
    assert recorder.outputs((2, 4), calls=1) == {}
    assert set(recorder.outputs((2, 4), calls=2)) == {EVENT}


def test_positions_looked_up_once_for_a_batch_are_those_of_each_sequence() -> None:
    table = torch.nn.Embedding(9, 6)
    with recording({"wpe": table}) as recorder:
        table(torch.arange(5))
        table(torch.arange(5, 8))
    print_BTK = recorder.print_BTK(("wpe", "out"), (2, 8))
    assert print_BTK is not None
    assert print_BTK.shape == (2, 8, KEPT)
    assert torch.equal(print_BTK[0], print_BTK[1])
