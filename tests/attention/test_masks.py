"""What masks of each kind allow and add, and that a changed mask keeps its bias."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attncheck.attention.call import AttentionCall
from attncheck.attention.masks import allowed_BHTS, bias_in, bias_of, with_allowed
from attncheck.core.errors import CannotInject


def call(mask: Any, new: int = 3, total: int = 3, **options: Any) -> AttentionCall:
    query, key = torch.zeros(1, 2, new, 4), torch.zeros(1, 2, total, 4)
    return AttentionCall(nn.Module(), query, key, key, mask, options, lambda *_, **__: None)


def biased() -> Tensor:
    """Float masks hide with the smallest number of their dtype and add anything larger."""
    mask = torch.tensor([[0.0, 0.0], [-3.0, 0.0]])
    return mask.masked_fill(torch.ones(2, 2).triu(1).bool(), torch.finfo(torch.float16).min)[
        None, None
    ]


def test_a_float_mask_hides_at_the_smallest_float16_and_adds_what_is_larger() -> None:
    assert allowed_BHTS(call(biased(), 2, 2)).tolist() == [[[[True, False], [True, True]]]]
    assert bias_in(biased()).tolist() == [[[[0.0, 0.0], [-3.0, 0.0]]]]  # type: ignore[union-attr]
    assert bias_in(torch.zeros(1, 1, 2, 2)) is None
    assert bias_in(torch.ones(1, 1, 2, 2, dtype=torch.bool)) is None


def test_a_bias_beside_the_mask_is_added_to_the_one_within_it() -> None:
    beside = torch.arange(6.0).reshape(1, 1, 2, 3)
    assert bias_of(call(None, 2, 2)) is None
    alone = bias_of(call(None, 2, 2, position_bias=beside))
    both = bias_of(call(biased(), 2, 2, position_bias=beside))
    assert alone is not None
    assert both is not None
    assert alone.tolist() == [[[[0.0, 1.0], [3.0, 4.0]]]]
    assert both.tolist() == [[[[0.0, 1.0], [0.0, 4.0]]]]


def test_without_a_mask_several_queries_are_causal_and_one_reads_everything() -> None:
    assert allowed_BHTS(call(None, 2, 3))[0, 0].tolist() == [[True, True, False], [True] * 3]
    assert bool(allowed_BHTS(call(None, 1, 3)).all())
    assert bool(allowed_BHTS(call(None, 3, 3, is_causal=False)).all())


def test_a_mask_of_another_kind_raises_the_error_that_the_caller_wants() -> None:
    with pytest.raises(CannotInject, match="not a 4D tensor"):
        allowed_BHTS(call(object()), CannotInject)


def test_changed_keys_replace_the_mask_and_keep_its_bias() -> None:
    changed = with_allowed(
        call(biased(), 2, 2, is_causal=True), torch.tensor([[[[True, True], [True, False]]]])
    )
    assert allowed_BHTS(changed).tolist() == [[[[True, True], [True, False]]]]
    assert float(changed.mask[0, 0, 1, 0]) == -3.0  # type: ignore[index]
    assert changed.options["is_causal"] is False
