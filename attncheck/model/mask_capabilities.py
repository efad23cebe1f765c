"""What a model does with masks, and whether its attention can be watched, found out by trying.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attncheck.attention.call import AttentionCall
from attncheck.attention.recorder import capture, record
from attncheck.core.capability import Answers, Capability, Tried
from attncheck.core.errors import Unsupported, first_line
from attncheck.model.forward import ForwardAdapter
from attncheck.model.forward_spec import ForwardSpec, all_ones, blocks
from attncheck.model.inputs import Inputs
from attncheck.model.passes import Passes
from attncheck.model.refusal import REFUSALS, classified
from attncheck.numerics.budget import Budget
from attncheck.numerics.divergence import beyond

CAN = Capability()


@dataclass
class MaskCapabilities(Answers):
    """What a model does with masks, and how its attention can be watched."""

    forward_adapter: ForwardAdapter
    passes: Passes
    inputs: Inputs
    measured_budget: Callable[[], Budget]

    def __post_init__(self) -> None:
        row, length = self.inputs.row, self.inputs.length
        half = length // 2
        self._full = ForwardSpec((row,))
        self._halves = half, length - half
        self._kind = type(self.forward_adapter.model).__name__

    @property
    def budget(self) -> Budget:
        """What rounding does to these logits, asked for when it is needed."""
        return self.measured_budget()

    def _differ(
        self,
        left: ForwardSpec,
        right: ForwardSpec,
        start: int = 0,
        stop: int | None = None,
        rule: Callable[[Tensor, Tensor, float], bool] = beyond,
    ) -> bool:
        left_BTV, right_BTV = (self.passes.logits(spec)[:, start:stop] for spec in (left, right))
        return rule(left_BTV, right_BTV, self.budget.value)

    def _runs(self, spec: ForwardSpec, what: str) -> Capability:
        try:
            self.passes.logits(spec)
        except Unsupported as reason:
            return Capability.lacking(reason)
        except REFUSALS as error:
            return Capability.lacking(classified(error, f"{what} raises {first_line(error)}"))
        return CAN

    @Tried
    def mask_2d(self) -> Capability:
        """A 2D mask is an argument."""
        masked = ForwardSpec(self.inputs.tokens, mask=all_ones(self.inputs.tokens))
        return self._runs(masked, "a 2D `attention_mask`")

    @Tried
    def pads(self) -> Capability:
        """Rows can be padded: a 2D mask is an argument, or there is an encoder with one."""
        return CAN if self.forward_adapter.fixed else self.mask_2d

    @Tried
    def takes_mask_4d(self) -> Capability:
        """A 4D mask is an argument, whether or not the model obeys it."""
        masked = ForwardSpec(self.inputs.tokens, mask=blocks(self._halves))
        return self._runs(masked, "a 4D `attention_mask`")

    @Tried
    def mask_4d(self) -> Capability:
        """A 4D mask is obeyed: tokens that a block in it hides do not move the logits."""
        if not self.takes_mask_4d:
            return self.takes_mask_4d
        cut, row = self._halves[0], self.inputs.row
        usual, changed = (
            ForwardSpec((each,), mask=blocks(self._halves))
            for each in (row, self.inputs.other(row, 0, cut))
        )
        if not self._differ(usual, changed, start=cut):
            return CAN
        return Capability(
            "a 4D `attention_mask` is taken, but tokens that it hides still move the logits"
        )

    @Tried
    def kernel(self) -> Capability:
        """Attention goes through transformers' attention interface, where it can be watched and
        changed.
        """
        with record(self.forward_adapter.model, lambda call: None) as calls:
            self._run_once()
        if calls:
            return CAN
        return Capability(
            "attention is computed inside the model, out of reach of the attention interface"
        )

    @Tried
    def watch(self) -> Capability:
        """Attention can be watched, at the attention interface or in the model's own arithmetic."""
        if self.kernel:
            return CAN
        calls: list[None] = []

        def run(call: AttentionCall) -> Any:
            calls.append(None)
            return call.run()

        with capture(self.forward_adapter.model, run, inline=True) as refused:
            self._run_once()
        if calls:
            return CAN
        why = next(iter(refused.values()), "no scores pass a softmax and meet values")
        return Capability(f"{self._kind} runs no attention that can be watched: {why}")

    def _run_once(self) -> None:
        with torch.no_grad():
            self.passes.call(self.inputs.tokens, use_cache=False)
