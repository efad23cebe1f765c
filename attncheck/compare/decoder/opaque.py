"""Parts of a reference that cannot be written out are run as they are, in float64, so that every
other part is still compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from attncheck.compare.decoder.observed import Observed, first_tensor
from attncheck.compare.decoder.spec import (
    AttentionSpec,
    MlpSpec,
    OpaquePart,
    Projection,
    Visit,
    Weights,
)
from attncheck.numerics.hooks import hooked


def opaque_part(observed: Observed, name: str) -> OpaquePart:
    """A module as a function of its first tensor, with everything else that it got in the observed
    forward. It can be run while the model is at float64.
    """
    module, x = observed.module(name), observed.inputs[name]
    args, kwargs = observed.given[name]
    first = first_tensor((*args, *kwargs.values()))

    def run(value: Tensor, weights: Weights, visit: Visit) -> Tensor:
        assert first is not None
        given = value.reshape(first.shape).to(first)
        placed = [given if each is first else each for each in args]
        named = {key: given if each is first else each for key, each in kwargs.items()}
        inner = [(n, child) for n, child in module.named_modules() if n]
        hooks = [child.register_forward_hook(_visiting(n, visit)) for n, child in inner]
        with torch.no_grad(), hooked(hooks), observed.numerics():
            output = first_tensor(functional_call(module, weights, tuple(placed), named))
        assert output is not None
        return output.detach().cpu().double().reshape(x.shape)

    own = {n: each.detach().cpu().double() for n, each in module.named_parameters()}
    return OpaquePart(run=run, own=own, module=name, weights={})


def unread_attention(part: OpaquePart | None, name: str) -> AttentionSpec:
    """An attention that is run as it is; its other fields hold nothing."""
    nothing = Projection(weight=torch.zeros(0, 0))
    return AttentionSpec(
        query=nothing,
        key=nothing,
        value=nothing,
        output=nothing,
        heads=1,
        groups=1,
        width=1,
        scale=1.0,
        opaque=part,
        module=name,
    )


def unread_block(part: OpaquePart | None, name: str) -> MlpSpec:
    """A feed-forward block that is run as it is; its other fields hold nothing."""
    nothing = Projection(weight=torch.zeros(0, 0))
    return MlpSpec(up=nothing, down=nothing, activation="no activation", opaque=part, module=name)


def _visiting(name: str, visit: Visit) -> Callable[..., None]:
    def hook(module: Any, args: Any, output: Any) -> None:
        value = first_tensor(output)
        if value is not None and value.is_floating_point():
            visit(name, value.detach().cpu().double())

    return hook
