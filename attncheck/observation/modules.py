"""A module outside attention that differs for equal inputs: what was done to what it returns.

Axes: B batch, T positions, W hidden width or vocabulary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn

from attncheck.attention.layers import layer_number
from attncheck.core.observed_part import What
from attncheck.numerics.divergence import max_abs
from attncheck.numerics.module_outputs import last_calls
from attncheck.observation.deviation import Deviation
from attncheck.observation.sequence import Sequence
from attncheck.observation.vectors import Matcher, Matches


@final
@dataclass
class ModuleReturns:
    """What one module returned in the failing forward, call by call, and how that differs from what
    it returns on the trusted path. `length` counts the positions of the failing
    forward; with a `part` only that sequence of it counts.

    `deviations` and `opaque` are known when the trusted path has run inside `replaced`.
    """

    name: str
    module: nn.Module
    relative: float
    real_BT: Tensor | None
    length: int
    part: Sequence | None = None
    calls: list[Tensor] = field(default_factory=list)
    deviations: list[Deviation] = field(default_factory=list)
    opaque: bool = False

    @property
    def what(self) -> What:
        """Logits, where the module is the whole model; hidden states else."""
        return "hidden" if self.name else "logits"

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        """Keep what the module returns in the failing forward."""

        def hook(module: nn.Module, args: Any, output: Any) -> None:
            self.calls.append(states_in(output).detach().clone())

        with self.module.register_forward_hook(hook):
            yield

    @contextlib.contextmanager
    def replaced(self) -> Iterator[None]:
        """While active, the module returns what its changes make of the right output."""

        def hook(module: nn.Module, args: Any, output: Any) -> Any:
            return with_states(output, self._changed(states_in(output)))

        with self.module.register_forward_hook(hook):
            yield

    def _changed(self, right_BTW: Tensor) -> Tensor:
        observed_BTW = last_calls(self.calls, self.length)
        if observed_BTW is not None and self.part is not None:
            observed_BTW = self.part.states(observed_BTW)
        if observed_BTW is None or observed_BTW.shape != right_BTW.shape:
            return right_BTW
        matches = self._matches(observed_BTW[:, None], right_BTW[:, None])
        self.opaque = matches.opaque > 0
        self.deviations = list(self._deviations(matches))
        return matches.predicted_BGSD[:, 0]

    def _matches(self, observed_B1TW: Tensor, right_B1TW: Tensor) -> Matches:
        rows, _, length, _ = right_B1TW.shape
        token_B1T = torch.arange(length, device=right_B1TW.device).expand(rows, 1, length)
        needed_B1T = torch.ones_like(token_B1T, dtype=torch.bool)
        if self.real_BT is not None:
            needed_B1T = needed_B1T & self.real_BT.to(needed_B1T.device)[:, None]
        finite = right_B1TW[right_B1TW.isfinite()]
        limit = self.relative * (max_abs(finite) if finite.numel() else 1.0)
        return Matcher(observed_B1TW, right_B1TW, token_B1T, (0,), needed_B1T, limit).run()

    def _deviations(self, matches: Matches) -> Iterator[Deviation]:
        first = 0 if self.part is None else self.part.first
        bounds = [
            (max(0, start - first), stop - first)
            for start, stop in _bounds(self.calls, self.length)
            if stop > first
        ]
        for (b, _, t), change in matches.changes.items():
            start, stop = next(each for each in bounds if each[0] <= t < each[1])
            yield Deviation(
                what=self.what,
                how=change.how,
                layer=-1 if (layer := layer_number(self.name)) is None else layer,
                row=b,
                at=t,
                start=start,
                when="prefill" if not start else "step" if stop - start == 1 else "chunk",
                amount=change.amount,
                dtype=change.dtype,
                source=change.source,
                module=self.name,
                opaque=change.how == "another function",
            )


def _bounds(calls: list[Tensor], length: int) -> list[tuple[int, int]]:
    """Where each of the last calls begins and ends, that make up `length` positions."""
    found, stop = list[tuple[int, int]](), length
    for call in reversed(calls):
        found.append((stop - call.shape[1], stop))
        stop -= call.shape[1]
    return [(start, end) for start, end in reversed(found) if end > 0]


def states_in(output: Any) -> Tensor:
    """The hidden states or logits among what a module returns, (B, T, W)."""
    if isinstance(output, Tensor):
        return output
    found: Tensor = output[0] if isinstance(output, tuple) else output.logits
    return found


def with_states(output: Any, states_BTW: Tensor) -> Any:
    """What a module returned, with other states."""
    if isinstance(output, Tensor):
        return states_BTW
    if isinstance(output, tuple):
        return (states_BTW, *output[1:])
    output.logits = states_BTW
    return output
