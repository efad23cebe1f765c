"""Widening operator by operator equals casting the whole model, to the bit."""

from __future__ import annotations

import copy

import pytest
import torch

from attncheck.core.settings import Settings
from attncheck.model.compat import cache_of, plain_experts
from attncheck.model.forward import ForwardAdapter
from attncheck.numerics.promote import Promote
from attncheck.numerics.widen import Widen
from attncheck.targets.random_init import build

IDS_BT = torch.arange(3, 35)[None]


@pytest.mark.parametrize("kind", ["llama", "gpt2", "gpt_oss", "gemma3_text", "bloom"])
def test_widened_weights_give_the_logits_of_a_cast_model(kind: str) -> None:
    model = build(kind, Settings(layers=2)).to(torch.bfloat16).eval()
    plain_experts(model)
    cast = copy.deepcopy(model).double()
    with torch.no_grad():
        with Widen():
            widened_BTV = model(input_ids=IDS_BT, use_cache=False).logits
        with Promote():
            cast_BTV = cast(input_ids=IDS_BT, use_cache=False).logits
    assert widened_BTV.dtype == torch.float64
    assert torch.equal(widened_BTV, cast_BTV)
    assert {value.dtype for value in model.parameters()} == {torch.bfloat16}


def test_a_decode_on_a_cache_is_widened_too() -> None:
    model = build("llama", Settings(layers=2)).to(torch.bfloat16).eval()
    with torch.no_grad(), Widen():
        full_BTV = model(input_ids=IDS_BT, use_cache=False).logits
        first = model(input_ids=IDS_BT[:, :20], use_cache=True)
        rest_BTV = (
            ForwardAdapter(model).call(IDS_BT[:, 20:], cache=cache_of(first), before=20).logits_BTV
        )
    assert float((rest_BTV - full_BTV[:, 20:]).abs().max()) < 1e-13


def test_what_writes_in_place_writes_to_the_tensor_itself() -> None:
    narrow = torch.zeros(4, dtype=torch.bfloat16)
    with Widen():
        narrow.add_(torch.ones(4, dtype=torch.bfloat16))
        narrow[0] = 5.0
        narrow += 1.0
        assert narrow.dtype == torch.float64  # what a model that asks is told
    assert narrow.dtype == torch.bfloat16
    assert narrow.tolist() == [6.0, 2.0, 2.0, 2.0]


def test_bytes_read_as_another_dtype_stay_what_they_are() -> None:
    stored = torch.tensor([1.5, -2.0], dtype=torch.bfloat16).view(torch.uint8)
    with Widen():
        read = stored.view(torch.bfloat16)
    assert read.tolist() == [1.5, -2.0]


def test_only_float32_is_promoted_a_half_precision_that_a_model_asks_for_stays() -> None:
    third = torch.tensor(1.0, dtype=torch.float64) / 3
    with Promote():
        assert third.float().dtype == torch.float64
        assert third.to(torch.float32).dtype == torch.float64
        assert third.softmax(0, dtype=torch.float32).dtype == torch.float64
        assert third.to(torch.bfloat16).dtype == torch.bfloat16
        assert third.half().dtype == torch.float16
        assert float(third.bfloat16()) != float(third)
