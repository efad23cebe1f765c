"""What it is
    `position_ids` are accepted and thrown away.

How it looks
    Other positions give the same logits; packed rows and serving engines that pass positions get
    wrong answers silently.

Where it comes from
    An argument swallowed by `**kwargs`; a cached rotary table indexed by the length alone.

What to change
    Use the positions that are passed, or refuse the argument.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from attncheck.core.errors import CannotInject
from attncheck.faults.engine import Fault, Hypothesis, Injected, Trusted, WrongForward, injection
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.subject import Subject


def inject(subject: Subject) -> Injected:
    """Drop `position_ids` from every call."""
    subject.can.reads_positions.require(CannotInject)
    return injection.without_argument(subject, subject.forward_adapter.positions_name)


def _hypotheses(forward: WrongForward) -> Iterator[Hypothesis]:
    if forward.spec.positions is not None and forward.subject.can.takes_positions:
        yield Hypothesis(predict=_left_to_the_model)


def _left_to_the_model(trusted: Trusted, spec: ForwardSpec) -> Tensor:
    """Without positions, only a 4D mask still separates documents."""
    return trusted.logits(replace(spec, positions=None))


FAULT = Fault(name="position-ids-ignored", inject=inject, hypotheses={235: _hypotheses})
