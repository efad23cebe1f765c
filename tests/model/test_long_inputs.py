"""Rows longer than the usual input: which logits are kept, and where there is no room for one."""

from __future__ import annotations

import pytest
import torch
from conftest import tiny_llama

from attncheck.core.errors import Unsupported
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.long_inputs import kept, long_row
from attncheck.model.subject import Subject


def test_logits_of_a_long_row_are_kept_at_some_positions_only(double: Subject) -> None:
    row = long_row(double)
    spec = ForwardSpec((row,), chunks=(65, 64, 1))
    everywhere = kept(len(row))
    assert len(row) == 130
    assert {0, 31, 32, 63, 127, 129} <= set(everywhere)
    assert torch.equal(
        double.passes.logits(spec, everywhere), double.logits(spec)[:, list(everywhere)]
    )


def test_a_context_without_room_is_not_called_long() -> None:
    subject = Subject.of(tiny_llama(max_position_embeddings=24), "short")
    with pytest.raises(Unsupported, match="no more than the usual 24 tokens fit"):
        long_row(subject)
