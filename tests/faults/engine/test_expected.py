"""The keys that each query should read: by documents, causality, windows and padding."""

from __future__ import annotations

import pytest
import torch

from attncheck.attention.call import AttentionCall
from attncheck.faults.engine.expected import expected_keys, nearest_span, segments_of
from attncheck.judge.config_spec import FULL, AttentionSpan
from attncheck.model.forward_spec import ForwardSpec, Mask2D, blocks


def test_documents_are_separated_by_mask_or_by_positions() -> None:
    row = ((5, 6, 7, 8),)
    assert segments_of(ForwardSpec(row, mask=blocks((2, 2)))) == ((0, 0, 1, 1),)
    assert segments_of(ForwardSpec(row, positions=((0, 1, 0, 1),))) == ((0, 0, 1, 1),)
    assert segments_of(ForwardSpec(row, positions=((0, 1, 0, 1),), use_cache=None)) is None


def test_expected_keys_are_causal_windowed_and_without_padding() -> None:
    spec = ForwardSpec(((5, 6, 7, 8),), mask=Mask2D(((0, 1, 1, 1),)))
    allowed = expected_keys(spec, AttentionSpan("sliding", 2), torch.device("cpu"))[0, 0]
    assert allowed.tolist() == [
        [False, False, False, False],
        [False, True, False, False],
        [False, True, True, False],
        [False, False, True, True],
    ]


@pytest.mark.parametrize("windowed", [True, False])
def test_a_layer_that_names_no_window_has_the_span_that_it_reads(windowed: bool) -> None:
    window, spec = AttentionSpan("sliding", 2), ForwardSpec(((5, 6, 7, 8),))
    read = expected_keys(spec, window if windowed else FULL, torch.device("cpu"))
    states = torch.zeros(1, 1, 4, 2)
    call = AttentionCall(torch.nn.Identity(), states, states, states, read, {}, lambda *_: None)
    assert nearest_span((window, FULL), call, spec) == (window if windowed else FULL)
