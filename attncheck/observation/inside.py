"""A leak inside an attention module: weights on hidden tokens, weights that do not add up to one,
and heads that are put together in another order. Each is mended while it is measured.

Axes: B batch, H heads, T query positions, S key positions, D head width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn

from attncheck.attention.call import AttentionCall, suspend_recording, weights_of
from attncheck.attention.reference import grouped
from attncheck.core.errors import Unsupported
from attncheck.core.observed_part import ObservedPart
from attncheck.numerics.divergence import max_abs
from attncheck.numerics.hooks import hooked

LEAST = 1e-12
"""Weights above this on a hidden token, or this far from a sum of one, are no rounding."""


@final
@dataclass
class InsideAttention:
    """What attention modules do wrong by themselves: the largest weight on a hidden token and the
    smallest sum of weights, by module, and the modules that mix heads and positions.
    """

    model: nn.Module
    hidden: dict[str, float] = field(default_factory=dict)
    sums: dict[str, float] = field(default_factory=dict)
    merged: dict[str, str] = field(default_factory=dict)
    contexts: dict[int, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = {id(module): name for name, module in self.model.named_modules()}

    def observe(self, call: AttentionCall, allowed: Tensor, context_BTHD: Tensor) -> Tensor:
        """context_BTHD of a call; where its arithmetic has a caveat, with hidden tokens at weight
        zero and the others adding up to one.
        """
        if call.caveat:
            context_BTHD = self._mended(call, allowed, context_BTHD)
        self.contexts[id(call.module)] = context_BTHD
        return context_BTHD

    def _mended(self, call: AttentionCall, allowed: Tensor, context_BTHD: Tensor) -> Tensor:
        try:
            with suspend_recording():
                weights_BHTS = weights_of(call)
        except Unsupported:
            return context_BTHD
        name = self.names.get(id(call.module), "")
        leaked = max_abs(torch.where(allowed, 0.0, weights_BHTS))
        lowest = float(weights_BHTS.sum(-1).min())
        if leaked > LEAST:
            self.hidden[name] = max(leaked, self.hidden.get(name, 0.0))
        elif 1 - lowest > LEAST:
            self.sums[name] = min(lowest, self.sums.get(name, 1.0))
        else:
            return context_BTHD
        kept_BHTS = torch.where(allowed, weights_BHTS, 0.0)
        kept_BHTS = kept_BHTS / kept_BHTS.sum(-1, keepdim=True)
        heads = list(grouped(weights_BHTS.shape[1], call.value_BGSD.shape[1]))
        return (kept_BHTS @ call.value_BGSD[:, heads]).transpose(1, 2)

    @contextlib.contextmanager
    def merging(self) -> Iterator[None]:
        """While active, the first module behind each kernel gets its heads side by side."""
        above = {
            id(child): module for module in self.model.modules() for child in module.children()
        }

        def hook(module: nn.Module, args: Any) -> Any:
            context_BTHD = self.contexts.pop(id(above[id(module)]), None)
            if context_BTHD is None or not args or not isinstance(args[0], Tensor):
                return None
            return self._side_by_side(module, args, context_BTHD)

        children = [each for each in self.model.modules() if id(each) in above]
        with hooked(each.register_forward_pre_hook(hook) for each in children):
            yield

    def _side_by_side(self, module: nn.Module, args: Any, context_BTHD: Tensor) -> Any:
        got = args[0]
        if got.numel() != context_BTHD.numel():
            return None
        want = context_BTHD.reshape(got.shape)
        limit = LEAST * max(max_abs(want), LEAST)
        same = max_abs(got - want) <= limit
        # the same numbers in another order
        if same or max_abs(got.flatten().sort()[0] - want.flatten().sort()[0]) > limit:
            return None
        name = self.names.get(id(module), "")
        self.merged[name.rpartition(".")[0]] = name
        return (want, *args[1:])

    @property
    def modules(self) -> list[str]:
        """The modules with something wrong, in the order of the model."""
        return [name for name in self.names.values() if name in self._wrong]

    @property
    def _wrong(self) -> set[str]:
        return {*self.hidden, *self.sums, *self.merged}

    @property
    def sentence(self) -> str:
        """What is wrong in the first such module; empty where nothing is."""
        return "; ".join(text for text, _, _ in self._facts())

    @property
    def parts(self) -> tuple[ObservedPart, ...]:
        """The same as parts."""
        return tuple(part for _, part, _ in self._facts())

    @property
    def family(self) -> str:
        """The nearest fault of the catalogue."""
        return next((family for _, _, family in self._facts()), "")

    def _facts(self) -> Iterator[tuple[str, ObservedPart, str]]:
        name = next(iter(self.modules), "")
        if name in self.hidden:
            text = f"tokens that {name} must not read keep weights of up to {self.hidden[name]:.2g}"
            yield text, ObservedPart(what="cells", how="visible", text=text), "causal-mask-missing"
        if name in self.sums:
            text = (
                f"the weights of a query in {name} add up to {self.sums[name]:.3g} only: tokens "
                "that it must not read take part in the softmax"
            )
            part = ObservedPart(what="scores", how="another function", text=text)
            yield text, part, "causal-mask-missing"
        if name in self.merged:
            behind = self.merged[name].rpartition(".")[2]
            text = (
                f"the heads of {name} reach {behind} in another order: as channels of other "
                "positions and heads"
            )
            yield text, ObservedPart(what="context", how="other token", text=text), ""
