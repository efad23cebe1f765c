"""What it is
    Each decode step makes a physical copy of the whole cache for every query head.

How it looks
    The output is right; a step allocates memory in proportion to the whole context and is slow.

Where it comes from
    `repeat_interleave` or `expand(...).reshape(...)` in front of a kernel that takes grouped heads
    by itself.

What to change
    Let the kernel group the heads (`enable_gqa=True`), or expand without reshaping.
"""

from __future__ import annotations

from typing import Any

from attncheck.attention.call import AttentionCall
from attncheck.core.errors import CannotInject
from attncheck.faults.engine import Fault, Injected, injection
from attncheck.model.subject import Subject


def inject(subject: Subject) -> Injected:
    """Repeat all keys and values in memory before each attention call."""
    subject.can.kernel.require(CannotInject)

    def handler(call: AttentionCall) -> Any:
        groups = max(2, injection.repeats(call))
        call.key_BGSD = call.key_BGSD.repeat_interleave(groups, 1)[:, ::groups]
        call.value_BGSD = call.value_BGSD.repeat_interleave(groups, 1)[:, ::groups]
        return call.run()

    return injection.at_kernel(subject, handler)


FAULT = Fault(name="kv-repeat-copied", inject=inject)
