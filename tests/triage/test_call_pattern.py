"""A forward reads back as the axes on which it differs from a plain one."""

from __future__ import annotations

import pytest

from attncheck.model.forward_spec import ForwardSpec, Mask2D, Mask4D
from attncheck.triage.call_pattern import pattern_of


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (ForwardSpec(((1, 2, 3),)), "one plain forward"),
        (ForwardSpec(((1, 2, 3),), chunks=(1, 1, 1)), "decoded token by token on a cache"),
        (
            ForwardSpec(((1, 2, 3),), chunks=(1, 2), attn="eager"),
            "under `eager` attention, fed in uneven chunks on a cache",
        ),
        (
            ForwardSpec(((1, 2), (3, 4)), mask=Mask2D(((0, 1), (1, 1)))),
            "left-padded, in a batch of 2",
        ),
        (
            ForwardSpec(((1, 2),), mask=Mask4D(((0, 0),)), positions=((0, 1),)),
            "with a 4D mask, with `position_ids` passed",
        ),
    ],
)
def test_a_pass_reads_as_the_axes_it_moves(spec: ForwardSpec, words: str) -> None:
    assert str(pattern_of(spec)) == words
