"""Which tokens each query of a call could read, and how that differs from what it should read.

Axes: B batch, H query heads, G key/value heads, T queries of the call, S slots, K tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from attncheck.core.observed_part import How


@final
@dataclass(frozen=True)
class Cells:
    """The readable tokens of one call: how often each query reads each token, and where slots lack
    it.
    """

    count_BHTK: Tensor
    held_BHK: Tensor

    def differing(self, expected_BHTK: Tensor) -> Iterator[tuple[How, tuple[int, int, int, int]]]:
        """The cells that are not as expected: (sequence, head, query, token) each."""
        kinds: tuple[tuple[How, Tensor], ...] = (
            ("visible", (self.count_BHTK > 0) & ~expected_BHTK),
            ("twice", (self.count_BHTK > 1) & expected_BHTK),
            ("hidden", (self.count_BHTK == 0) & expected_BHTK & self.held_BHK[:, :, None]),
            ("missing", (self.count_BHTK == 0) & expected_BHTK & ~self.held_BHK[:, :, None]),
        )
        for how, wrong_BHTK in kinds:
            for b, h, t, k in wrong_BHTK.nonzero().tolist():
                yield how, (b, h, t, k)


def readable_tokens(
    allowed_BHTS: Tensor, token_BGS: Tensor, heads: tuple[int, ...], length: int
) -> Cells:
    """The readable slots of a call as tokens; slots of no token are left out."""
    token_BHS = token_BGS[:, list(heads)]
    one_hot_BHSK = torch.nn.functional.one_hot(token_BHS + 1, length + 1)[..., 1:]
    count_BHTK = (allowed_BHTS.double() @ one_hot_BHSK.double()).round().long()
    return Cells(count_BHTK, one_hot_BHSK.any(2))


def reading_empty(
    allowed_BHTS: Tensor, empty_BHS: Tensor
) -> Iterator[tuple[How, tuple[int, int, int, int]]]:
    """The queries that read slots of a buffer which hold no token yet, as cells of token -1."""
    for b, h, t in (allowed_BHTS & empty_BHS[:, :, None]).any(-1).nonzero().tolist():
        yield "empty", (b, h, t, -1)
