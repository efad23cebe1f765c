"""One call of an attention kernel as something to look at, to change and to run again, whoever
computes it.

Axes: B batch, H query heads, G key/value heads, T query positions, S key positions, D head width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, final

from torch import Tensor, nn

Kernel = Callable[..., Any]


@final
@dataclass
class AttentionCall:
    """One call of an attention kernel: query_BHTD, key_BGSD, value_BGSD, the mask and the options
    as they are passed.

    `inline` says that it was read off a model's own arithmetic, its scale and mask included;
    `doubt` why a difference in what it gives would then prove nothing, where something in that
    arithmetic is not understood.
    """

    module: nn.Module
    query_BHTD: Tensor
    key_BGSD: Tensor
    value_BGSD: Tensor
    mask: Tensor | None
    options: dict[str, Any]
    kernel: Kernel
    inline: bool = False
    doubt: str = ""

    def copy(self) -> AttentionCall:
        """The same call, which later changes to this one leave alone."""
        return replace(self, options=dict(self.options))

    def run(self) -> Any:
        """Call the kernel with what this call now holds."""
        return self.kernel(
            self.module, self.query_BHTD, self.key_BGSD, self.value_BGSD, self.mask, **self.options
        )


Handler = Callable[[AttentionCall], Any]

_LOOKING_AWAY: ContextVar[bool] = ContextVar("looking_away", default=False)


def looking_away() -> bool:
    """Whether what is computed now is no part of the model: a handler's own arithmetic, or the
    inside of a kernel.
    """
    return _LOOKING_AWAY.get()


@contextlib.contextmanager
def look(*, away: bool) -> Iterator[None]:
    """Say whether what is computed inside is the model's."""
    token = _LOOKING_AWAY.set(away)
    try:
        yield
    finally:
        _LOOKING_AWAY.reset(token)
