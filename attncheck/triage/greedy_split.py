"""Where greedy text and a forward over it first choose another token.

Axes: N generated tokens, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attncheck.model.inputs import Row
from attncheck.numerics.divergence import max_abs_diff
from attncheck.triage.answer import GreedySplit


def split_of(
    tokenizer: Any, want_NV: Tensor, got_NV: Tensor, answer: Row, start: int
) -> GreedySplit | None:
    """Where text and a forward over it first choose another token."""
    chosen_N = torch.tensor(answer, device=want_NV.device)
    flipped_N = (want_NV.argmax(-1) != chosen_N).nonzero().flatten()
    if not len(flipped_N):
        return None
    at = int(flipped_N[0])
    other, chosen = int(want_NV[at].argmax()), int(chosen_N[at])
    return GreedySplit(
        position=start + at,
        chosen=_shown(tokenizer, chosen),
        other=_shown(tokenizer, other),
        margin=float(want_NV[at, other] - want_NV[at, chosen]),
        difference=max_abs_diff(want_NV[at], got_NV[at]),
        flips=len(flipped_N),
        tokens=len(want_NV),
    )


def _shown(tokenizer: Any, token: int) -> str:
    return repr(tokenizer.decode([token])) if tokenizer is not None else f"token {token}"
