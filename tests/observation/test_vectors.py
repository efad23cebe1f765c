"""Each observed vector is the right one with what was done to it, or none that is known."""

from __future__ import annotations

import torch
from torch import Tensor

from attncheck.observation.vectors import Matcher

# Axes: B batch, G heads, T tokens, D width.


def changes(observed_BGTD: Tensor, right_BGTD: Tensor) -> set[str]:
    token_BGT = torch.arange(right_BGTD.shape[2]).expand(right_BGTD.shape[:3])
    heads = tuple(range(right_BGTD.shape[1]))
    needed_BGT = torch.ones_like(token_BGT, dtype=torch.bool)
    matches = Matcher(observed_BGTD, right_BGTD, token_BGT, heads, needed_BGT, 1e-12).run()
    return {change.how for change in matches.changes.values()}


def test_a_weight_is_shown_by_several_tokens_and_not_by_heads_that_share_channels() -> None:
    right_BGTD, weight_D = torch.randn(1, 4, 3, 8).double(), torch.randn(8).double()
    assert changes(right_BGTD * weight_D, right_BGTD) == {"weighted"}
    one_BGTD = right_BGTD.clone()
    one_BGTD[:, :, 1] *= weight_D
    assert changes(one_BGTD, right_BGTD) == {"another function"}
    assert changes(one_BGTD.expand(4, -1, -1, -1), right_BGTD.expand(4, -1, -1, -1)) == {
        "another function"
    }
