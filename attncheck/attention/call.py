"""One call of an attention kernel as a record that can be read, changed and run again.

Axes: B batch, H query heads, G key/value heads, T query positions, S key positions, D head width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor, nn

from attncheck.core.errors import Unsupported

Kernel = Callable[..., Any]


@final
@dataclass
class AttentionCall:
    """One call of an attention kernel, with the arguments that the model passes to it.

    `inline` marks a call that was reconstructed from the model's own arithmetic, scale and mask
    included. `caveat` says which part of that arithmetic was not understood: a difference in the
    kernel's output then proves nothing.
    """

    module: nn.Module
    query_BHTD: Tensor
    key_BGSD: Tensor
    value_BGSD: Tensor
    mask: Tensor | None
    options: dict[str, Any]
    kernel: Kernel
    inline: bool = False
    caveat: str = ""

    @property
    def is_self_attention(self) -> bool:
        """Whether the tokens of this call attend to themselves: not to a cache, not to an encoder,
        and not in both directions.
        """
        causal = self.options.get("is_causal", getattr(self.module, "is_causal", True))
        square = self.query_BHTD.shape[2] == self.key_BGSD.shape[2]
        return bool(square) and (self.inline or causal is not False)

    def copy(self) -> AttentionCall:
        """The same call; later changes to this one leave the copy alone."""
        return replace(self, options=dict(self.options))

    def run(self) -> Any:
        """Call the kernel with the present arguments."""
        output = self.kernel(
            self.module, self.query_BHTD, self.key_BGSD, self.value_BGSD, self.mask, **self.options
        )
        runs = _RUNS.get()
        if runs is not None:
            runs.append((self.copy(), output))
        return output


Handler = Callable[[AttentionCall], Any]
Runs = list[tuple[AttentionCall, Any]]

_RUNS: ContextVar[Runs | None] = ContextVar("runs_of_calls", default=None)
_SUSPENDED: ContextVar[bool] = ContextVar("recording_suspended", default=False)


@contextlib.contextmanager
def recorded_runs() -> Iterator[Runs]:
    """While active, collect every call that runs with its output, the innermost first: a handler
    within another one may have changed what its kernel gets.
    """
    runs: Runs = []
    token = _RUNS.set(runs)
    try:
        yield runs
    finally:
        _RUNS.reset(token)


def recording_suspended() -> bool:
    """Whether a handler or a kernel computes now, rather than the model."""
    return _SUSPENDED.get()


@contextlib.contextmanager
def suspend_recording(suspended: bool = True) -> Iterator[None]:
    """Do not record what is computed inside. With False, do record it again: a kernel that runs the
    model's own operations must be visible to a recorder around this one.
    """
    token = _SUSPENDED.set(suspended)
    try:
        yield
    finally:
        _SUSPENDED.reset(token)


def weights_of(call: AttentionCall, blank: bool = False) -> Tensor:
    """weights_BHTS as the kernel computes them, from the identity as values, D columns at a time.

    `blank` sets the queries to zero, so that every readable key gets a weight that cannot
    underflow.

    Raises:
        Unsupported: the kernel's output has another form than (B, T, H, D).
    """
    batch, groups, total, width = call.value_BGSD.shape
    expected = (batch, call.query_BHTD.shape[2], call.query_BHTD.shape[1], width)
    query_BHTD = torch.zeros_like(call.query_BHTD) if blank else call.query_BHTD
    columns = []
    for start in range(0, total, width):
        # the kernel returns weights @ values: one-hot values of D keys show D columns of weights
        value_SD = call.value_BGSD.new_zeros(total, width)
        stop = min(start + width, total)
        value_SD[torch.arange(start, stop), torch.arange(stop - start)] = 1
        value_BGSD = value_SD.expand(batch, groups, total, width).contiguous()
        context_BTHD = replace(call.copy(), query_BHTD=query_BHTD, value_BGSD=value_BGSD).run()[0]
        if context_BTHD.shape != expected:
            shape = tuple(context_BTHD.shape)
            raise Unsupported(f"the kernel returns {shape} where (B, T, H, D) was expected")
        columns.append(context_BTHD)
    return torch.cat(columns, -1)[..., :total].transpose(1, 2)
