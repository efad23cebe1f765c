"""position-reset: angles of far positions in half precision, stored or under autocast."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import tiny_llama
from probing import case, finding
from torch import Tensor

from attncheck.core.measurement import verdict_of
from attncheck.core.verdict import Verdict
from attncheck.model.subject import Subject
from attncheck_probes.position_reset.far_in_half import AUTOCAST, STORED, far_in_half


def rotary(model: Any, wrong: bool, dtype: torch.dtype) -> Any:
    """The model with tables that keep their frequencies in float32; a wrong one casts positions, or
    lets autocast multiply them.
    """
    tables = model.model.rotary_emb
    usual = tables.forward

    def forward(states: Tensor, position_ids: Tensor) -> Any:
        if not wrong:
            return usual(states, position_ids)
        if dtype is not torch.float32:
            return usual(states, position_ids.to(states.dtype))
        angles = (tables.inv_freq[None, :, None] @ position_ids[:, None].float()).mT
        angles = torch.cat([angles, angles], -1)
        return angles.cos().to(states.dtype), angles.sin().to(states.dtype)

    frequencies = tables.inv_freq.clone(), tables.original_inv_freq.clone()
    model.to(dtype)
    tables.inv_freq, tables.original_inv_freq = map(torch.nn.Buffer, frequencies)
    tables.forward = forward
    return model


@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize(("dtype", "name"), [("float32", AUTOCAST), ("bfloat16", STORED)])
def test_angles_in_half_precision_are_named(wrong: bool, dtype: str, name: str) -> None:
    model = rotary(tiny_llama(), wrong, getattr(torch, dtype))
    subject = Subject.of(model, "llama")
    found = case(finding(subject, "position-reset"), name)
    assert verdict_of(found) is (Verdict.FAIL if wrong else Verdict.PASS)
    assert found.cause.fault == ("tables-rounded" if wrong else "")
    assert found.cause.module == ("model.rotary_emb" if wrong else "")


def test_a_model_without_room_is_not_asked() -> None:
    subject = Subject.of(tiny_llama(), "llama", dtype="float64")
    assert list(far_in_half(subject, 20)) == []
