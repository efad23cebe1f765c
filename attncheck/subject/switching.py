"""Whether another attention implementation really runs when it is asked for: seen from the kernel that is called."""

from __future__ import annotations

from typing import Any

import torch

from attncheck.subject.attention import KernelCall, intercept
from attncheck.subject.subject import Subject

SHORT = 4


def kernels_called(subject: Subject, attn: str | None) -> frozenset[tuple[str, str]]:
    """Module and name of every attention kernel that a short forward calls under an implementation (None: the one in force).

    Raises:
        Unsupported: the model refuses the implementation, or keeps its own without saying so.
    """
    seen: set[tuple[str, str]] = set()

    def watch(call: KernelCall) -> Any:
        seen.add((call.kernel.__module__, call.kernel.__name__))
        return call.run()

    with subject.using(attn), intercept(subject.model, watch), torch.no_grad():
        subject.passes.call((subject.inputs.row[:SHORT],), use_cache=False)
    return frozenset(seen)
