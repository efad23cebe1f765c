"""What it is
    The soft-cap of the attention scores in the config is not applied.

How it looks
    One implementation differs, most of all with large scores; long or padded inputs break first.

Where it comes from
    A fused kernel without soft-cap support that is chosen by default.

What to change
    Choose an implementation that applies it (eager, flex_attention), or refuse the fused kernel.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from attncheck.attention.call import AttentionCall
from attncheck.core.errors import CannotInject
from attncheck.faults.engine import Change, Fault, Hypothesis, WrongForward, injection
from attncheck.model.subject import Subject

OPTION = "softcap"


@contextlib.contextmanager
def inject(subject: Subject) -> Iterator[None]:
    """Drop the soft-cap from the options of the kernel."""
    if all(_passed(call) is None for call in injection.plain_calls(subject)):
        raise CannotInject("no layer passes its kernel a soft-cap")

    def handler(call: AttentionCall) -> Any:
        call.options = {name: value for name, value in call.options.items() if name != OPTION}
        return call.run()

    with injection.at_own_kernel(subject, handler):
        yield


def _passed(call: AttentionCall) -> Any:
    """The soft-cap that a kernel is passed; arithmetic of the model's own takes none."""
    return None if call.inline else call.options.get(OPTION)


def _hypotheses(forward: WrongForward) -> Iterator[Hypothesis]:
    first = forward.trusted.first_call
    if first is not None and first.options.get(OPTION) is not None:
        change = Change(params=lambda params: replace(params, cap=None))
        yield Hypothesis(change=change)


FAULT = Fault(name="softcap-missing", inject=inject, hypotheses={510: _hypotheses})
