"""Sharded models: the whole model beside the parts."""

from __future__ import annotations

import pytest
import torch
from conftest import tiny_llama

from attncheck.core.errors import Unsupported
from attncheck.targets import sharded


def test_the_whole_model_is_loaded_only_where_it_fits_and_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, device = tiny_llama(), torch.device("cpu")
    assert sharded.why_not_whole(model, (device,)) == (device, "")
    monkeypatch.setattr(sharded, "free_memory", lambda device: 1000)
    where, reason = sharded.why_not_whole(model, (device,))
    assert where is None
    assert "does not fit beside the parts" in reason
    sharded.remember_whole(model, lambda: tiny_llama())
    assert sharded.whole_of(model, device) is not model
    with pytest.raises(Unsupported, match="a second time"):
        sharded.whole_of(model, device)
