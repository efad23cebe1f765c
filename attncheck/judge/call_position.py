"""Where one attention call stands: which positions its queries and keys are, and what is padding.

Axes: B batch, T query positions, S key positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from attncheck.judge.config_spec import Reach


@final
@dataclass(frozen=True, kw_only=True)
class Standing:
    """`new` queries after `before` tokens. The first `padding` slots of each row (all rows none, if
    empty) hold nothing.
    """

    new: int
    before: int = 0
    padding: tuple[int, ...] = ()

    @property
    def stop(self) -> int:
        """How many slots there are after this call."""
        return self.before + self.new

    def real_BT(self, device: torch.device) -> Tensor:
        """Which queries are tokens: (B, T) booleans, (1, T) without padding."""
        slots_T = torch.arange(self.before, self.stop, device=device)
        return slots_T[None] >= torch.tensor(self.padding or (0,), device=device)[:, None]

    def allowed(self, reach: Reach, total: int, device: torch.device) -> tuple[Tensor, bool]:
        """(B, 1, T, S) booleans for the last `total` keys, or for `total` slots of which the last
        are empty.

        And whether a key that the reach demands is no longer among them.
        """
        rows = [self._row(reach, padding, device) for padding in self.padding or (0,)]
        allowed_BTS = torch.stack(rows)
        if total >= self.stop:
            empty = allowed_BTS.new_zeros(*allowed_BTS.shape[:2], total - self.stop)
            return torch.cat([allowed_BTS, empty], -1)[:, None], False
        cut = self.stop - total
        return allowed_BTS[..., cut:][:, None], bool(allowed_BTS[..., :cut].any())

    def _row(self, reach: Reach, padding: int, device: torch.device) -> Tensor:
        """(T, S) of one row; its positions count from the first real token."""
        square = torch.zeros(self.stop, self.stop, dtype=torch.bool, device=device)
        real = self.stop - padding
        square[padding:, padding:] = reach.allowed_TS(real, real, device)
        return square[self.before :]
