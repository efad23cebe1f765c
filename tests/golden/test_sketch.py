"""Sketches: the norm of a difference, where it begins, and nothing of what is under padding."""

from __future__ import annotations

import math

import torch

from attncheck.golden.sketch import GROUPS, at_real, norms, sizes, sketch, sketches, stretches
from attncheck.numerics.module_outputs import ModuleOutput


def test_a_sketch_estimates_the_norm_of_a_difference() -> None:
    torch.manual_seed(0)
    ratios = []
    for _ in range(50):
        delta_BTK = torch.randn(2, 24, 4, dtype=torch.float64)
        whole = float(sizes(sketch(delta_BTK)).square().sum().sqrt())
        ratios.append(whole / float(norms(delta_BTK).square().sum().sqrt()))
    assert abs(sum(ratios) / len(ratios) - 1) < 0.1


def test_a_difference_shows_in_its_stretch_and_padding_shows_nowhere() -> None:
    real_BT = torch.ones(1, 24, dtype=torch.bool)
    real_BT[0, :3] = False
    usual_BTK = torch.randn(1, 24, 4, dtype=torch.float64)
    changed_BTK = usual_BTK.clone()
    changed_BTK[0, 20] += 1
    changed_BTK[0, :3] = math.nan
    usual_GK, changed_GK = (sketch(at_real(each, real_BT)) for each in (usual_BTK, changed_BTK))
    amounts_G = sizes(changed_GK - usual_GK)
    assert [bool(each) for each in amounts_G > 0.5] == [False] * (GROUPS - 1) + [True]
    start, stop = stretches(24)[GROUPS - 1]
    assert start <= 20 < stop


def test_what_enters_a_module_is_kept_once() -> None:
    one, other = (ModuleOutput(torch.randn(1, 8, 4)) for _ in range(2))
    outputs = {
        ("norm", "out"): one,
        ("proj", "in"): one,
        ("proj", "out"): other,
        ("last", "in"): ModuleOutput(torch.randn(1, 8, 4)),
    }
    found = sketches(outputs, torch.ones(1, 8, dtype=torch.bool))
    assert found.events == (("norm", "out"), ("proj", "out"), ("last", "in"))
