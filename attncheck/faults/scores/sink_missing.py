"""What it is
    Learned attention sinks of the layer do not take part in the softmax.

How it looks
    Attention weights sum to one where they should sum to less; one implementation differs from the
    others.

Where it comes from
    A kernel that ignores the `s_aux` argument; sinks that were newly initialised because the
    checkpoint's name differs.

What to change
    Pass the sinks to the kernel, or choose one that supports them.

Axes: H query heads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attncheck.attention.call import AttentionCall
from attncheck.core.errors import CannotInject
from attncheck.faults.engine import Change, Fault, Hypothesis, WrongForward, injection
from attncheck.model.subject import Subject

OPTIONS = ("s_aux", "sinks")


@contextlib.contextmanager
def inject(subject: Subject) -> Iterator[None]:
    """Take the sinks' share out of the softmax."""
    if not any(map(_sinks, injection.plain_calls(subject))):
        raise CannotInject("no layer passes its kernel attention sinks")
    with injection.at_own_kernel(subject, _run_without):
        yield


def _sinks(call: AttentionCall) -> list[Tensor]:
    options = (call.options.get(name) for name in OPTIONS)
    return [option for option in options if isinstance(option, Tensor)]


def _run_without(call: AttentionCall) -> Any:
    """Run with sinks so low that they weigh nothing.

    Their values are overwritten in place, since some kernels read them from the module.
    """
    lowest = torch.finfo(torch.float32).min / 2
    saved = [(sink, sink.data.clone()) for sink in _sinks(call)]
    try:
        for sink, _ in saved:
            sink.data.fill_(max(lowest, torch.finfo(sink.dtype).min / 2))
        return call.run()
    finally:
        for sink, value in saved:
            sink.data.copy_(value)


def _hypotheses(forward: WrongForward) -> Iterator[Hypothesis]:
    first = forward.trusted.first_call
    if first is not None and isinstance(first.options.get(OPTIONS[0]), Tensor):
        change = Change(params=lambda params: replace(params, sinks_H=None))
        yield Hypothesis(change=change)


FAULT = Fault(name="sink-missing", inject=inject, hypotheses={520: _hypotheses})
