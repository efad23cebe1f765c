"""Convolution states that hold the inputs of other tokens than the newest.

Each column of such a state is matched with the inputs that the layer's convolution gets on a right
forward over all tokens. The proof is a repair: with the newest inputs put there after each call,
the failing forward gives the right logits.

Axes: B batch, C channels, T tokens, W columns of a state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attncheck.attention.layers import layer_lists
from attncheck.model.caches import CachedTensor
from attncheck.numerics.divergence import max_abs
from attncheck.numerics.hooks import hooked
from attncheck.observation.deviation import Deviation

Inputs = dict[tuple[int, int], Tensor]
"""inputs_BCT of the one convolution of a layer that has so many channels."""


@final
class _Inputs(TorchFunctionMode):
    """Keeps what convolutions get, by the layer that runs and the number of channels."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = -1
        self.found: dict[tuple[int, int], list[Tensor]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Keep the input of a convolution and run it."""
        if func in (torch.conv1d, nn.functional.conv1d) and args and args[0].ndim == 3:
            key = self.layer, args[0].shape[1]
            self.found.setdefault(key, []).append(args[0].detach().clone())
        return func(*args, **(kwargs or {}))

    def hooks(self, number: int, layer: nn.Module) -> Iterator[Any]:
        """Hooks that say which layer runs."""

        def enter(*_: object) -> None:
            self.layer = number

        def leave(*_: object) -> None:
            self.layer = -1

        yield layer.register_forward_pre_hook(enter)
        yield layer.register_forward_hook(leave)


def convolution_inputs(model: nn.Module, run: Callable[[], object], length: int) -> Inputs:
    """What the convolutions within layers get during one forward over `length` tokens."""
    mode = _Inputs()
    layers = [pair for each in layer_lists(model) for pair in enumerate(each)]
    with hooked(handle for number, layer in layers for handle in mode.hooks(number, layer)), mode:
        run()
    return {
        key: inputs[0]
        for key, inputs in mode.found.items()
        if key[0] >= 0 and len(inputs) == 1 and inputs[0].shape[2] == length
    }


@final
@dataclass
class ConvolutionStates:
    """Compares what a layer leaves in its convolution states with the newest of the right inputs,
    and puts those there.

    `relative` is the difference that rounding explains, as a share of the largest value.
    """

    inputs: Inputs
    relative: float
    deviations: list[Deviation] = field(default_factory=list)

    def repair(self, number: int, left: CachedTensor, start: int, stop: int) -> None:
        """Compare and mend the state that layer `number` left after the tokens start..stop-1."""
        state_BCW = left.tensor
        inputs_BCT = self.inputs.get((number, state_BCW.shape[1])) if state_BCW.ndim == 3 else None
        if inputs_BCT is None or inputs_BCT.shape[0] != state_BCW.shape[0]:
            return
        if stop > inputs_BCT.shape[2]:
            return
        width = state_BCW.shape[2]
        # column W + t of these is token t; what stands before the first token is zero
        padded = torch.nn.functional.pad(inputs_BCT[..., :stop], (width, 0)).to(state_BCW.dtype)
        limit = self.relative * max(max_abs(padded), 1e-30)
        right_BCW = padded[..., stop:]
        if max_abs(right_BCW - state_BCW) <= limit:
            return
        for row in range(state_BCW.shape[0]):
            tokens = range(stop - width, stop)
            for at, source in zip(tokens, _tokens(state_BCW[row], padded[row], limit), strict=True):
                if source != at:
                    self.deviations.append(_deviation(number, left, row, (start, stop), at, source))
        with torch.no_grad():
            state_BCW.copy_(right_BCW)


def _tokens(state_CW: Tensor, padded_CT: Tensor, limit: float) -> Iterator[int | None]:
    """The token that each column of a state holds, the newest of equals; None where it is none."""
    width = state_CW.shape[1]
    same_WT = (
        torch.cdist(state_CW.T.contiguous(), padded_CT.T.contiguous(), p=float("inf")) <= limit
    )
    for column, same_T in enumerate(same_WT):
        usual = padded_CT.shape[1] - width + column
        found = same_T.nonzero().flatten().tolist()
        yield (usual if usual in found else found[-1]) - width if found else None


def _deviation(
    number: int,
    left: CachedTensor,
    row: int,
    call: tuple[int, int],
    at: int,
    source: int | None,
) -> Deviation:
    start, stop = call
    zero = source is not None and source < 0
    return Deviation(
        what="state",
        how="another function" if source is None else "zero" if zero else "other token",
        layer=number,
        module=left.name,
        row=row,
        at=at,
        start=start,
        when="prefill" if not start else "step" if stop - start == 1 else "chunk",
        amount=None if source is None or zero else float(source - at),
        source=None if source is None or zero else (row, 0, source),
        opaque=source is None,
    )
