"""Hooks are gone after their block, also where it fails."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from attncheck.numerics.hooks import hooked


def test_hooks_are_removed_after_an_error() -> None:
    modules = [nn.Identity(), nn.Identity()]

    def fail_while_hooked() -> None:
        with hooked(each.register_forward_hook(lambda *_: torch.ones(1)) for each in modules):
            assert [float(each(torch.zeros(1))) for each in modules] == [1.0, 1.0]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_while_hooked()
    assert [float(each(torch.zeros(1))) for each in modules] == [0.0, 0.0]
