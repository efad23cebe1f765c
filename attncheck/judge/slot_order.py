"""Caches whose slots are not in the order of their tokens, as a ring buffer's are.

Axes: B batch, H query heads, G key/value heads, T new tokens, S slots, D head width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attncheck.attention.call import weights_of
from attncheck.core.errors import Unsupported
from attncheck.judge.config_spec import span_spec
from attncheck.judge.layer_calls import LayerCall
from attncheck.judge.layer_inputs import before_rotation
from attncheck.judge.layer_spec import CallPosition, PrefillState
from attncheck.judge.projections import resolution
from attncheck.numerics.divergence import max_abs


class OwnSlotOrder(Unsupported):
    """A cache keeps its slots in another order than that of the tokens."""


def require_token_order(
    config: Any, layer: LayerCall, position: CallPosition, prefill: PrefillState
) -> None:
    """Check that the new keys of a call lie where they do in the order of tokens.

    Raises:
        OwnSlotOrder: they lie in other slots, and each query reads as many keys as its config
            states: nothing says which slot holds which token.
    """
    slots = position.new_slots(layer.call.key_BGSD.shape[2])
    if _elsewhere(layer, slots, prefill) and _reads_as_many(config, layer, position):
        raise OwnSlotOrder(
            "its cache has an order of its own: the new keys lie in other slots, and each query "
            "reads as many keys as its config states"
        )


def _elsewhere(layer: LayerCall, slots: slice, prefill: PrefillState) -> bool:
    """Whether the new keys are in other slots than the usual ones, by their length in each head."""
    key_BGSD, source = layer.call.key_BGSD, prefill.key
    if source is None:
        return False
    states_BGTD = before_rotation(source, layer.stages.get(source.stage), key_BGSD[:, :, slots])
    if states_BGTD is None:
        return False
    slack = resolution(key_BGSD.dtype) * max_abs(key_BGSD.double())
    new_BGT, held_BGS = states_BGTD.norm(dim=-1), key_BGSD.double().norm(dim=-1)
    same_BTS = ((new_BGT[..., None] - held_BGS[:, :, None]).abs() <= slack).all(1)
    usual_BT = torch.diagonal(same_BTS[..., slots], dim1=1, dim2=2)
    # a prompt longer than a ring leaves its newest tokens in it
    return bool(same_BTS.any(-1)[:, -1:].all()) and not bool(usual_BT.all())


def _reads_as_many(config: Any, layer: LayerCall, position: CallPosition) -> bool:
    spans = span_spec(config, layer.call.module, layer.index).spans
    read_BT = _readable(layer)
    allowed = (position.allowed(each, position.stop, read_BT.device)[0] for each in spans)
    return any(torch.equal(read_BT, each.sum(-1)[:, 0].expand_as(read_BT)) for each in allowed)


def _readable(layer: LayerCall) -> Tensor:
    """How many keys each query can read, (B, T), by the head that reads most."""
    return (weights_of(layer.call, blank=True) > 0).sum(-1).amax(1)
