"""The scale of scores is fitted to the output of attention."""

from __future__ import annotations

import torch

from attncheck.attention.reference import AttentionParams, attend
from attncheck.observation.calls import RightLayer
from attncheck.observation.rescaled import rescaled


def layer() -> RightLayer:
    drawn = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 1, 2, 6, 8, generator=drawn, dtype=torch.float64)
    allowed = torch.ones(6, 6, dtype=torch.bool).tril()[None, None]
    params = AttentionParams(scale=0.5, allowed=allowed, heads=(0, 1))
    return RightLayer(
        layer=0,
        query_BHTD=query,
        key_BGTD=key,
        value_BGTD=value,
        context_BTHD=attend(query, key, value, params),
        params=params,
        real_BT=None,
        relative=1e-12,
    )


def test_another_scale_is_found() -> None:
    right = layer()
    wrong = AttentionParams(scale=0.35, allowed=right.params.allowed, heads=(0, 1))
    observed = attend(right.query_BHTD, right.key_BGTD, right.value_BGTD, wrong).flatten(2)
    found = rescaled(right, observed, right.context_BTHD.flatten(2))
    assert found is not None
    assert abs(found[0] - 0.7) < 1e-12
    assert float((found[1] - observed).abs().max()) < 1e-12


def test_other_outputs_have_no_scale() -> None:
    right = layer()
    context = right.context_BTHD.flatten(2)
    assert rescaled(right, context + 1.0, context) is None
    assert rescaled(right, context, context + 1.0) is None
