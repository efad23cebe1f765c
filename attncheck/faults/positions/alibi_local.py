"""What it is
    Linear biases (ALiBi) are counted within the chunk instead of over the whole history.

How it looks
    One forward is right, chunks on a cache are wrong; a single step may be right by luck.

Where it comes from
    The bias built from the length of the new tokens instead of the keys; a mask of the new tokens
    only.

What to change
    Build the bias from the absolute positions of the queries and of all keys, the cached ones
    included.

Axes: B batch, T positions of this call, S key positions.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch import Tensor

from attncheck.core.errors import CannotInject
from attncheck.faults.engine import Fault, Hypothesis, WrongForward, injection, schedule
from attncheck.model.forward_spec import ForwardSpec, all_ones
from attncheck.model.subject import Subject

NAME = "alibi"
Builder = Callable[..., Any]


@contextlib.contextmanager
def inject(subject: Subject) -> Iterator[None]:
    """Let the biases of the new keys count from 0 in every call on a cache."""
    builders = _builders(subject)
    if not subject.can.mask_2d or not builders or not _used(subject, builders):
        raise CannotInject(
            "the model builds no linear biases, one for each key, that can be reached"
        )
    lengths, adapter = [0, 0], subject.forward_adapter

    def note(call: dict[str, Any]) -> dict[str, Any]:
        ids_BT, mask_name = call[adapter.ids_name], str(adapter.mask_name)
        lengths[:] = injection.tokens_before(subject, call), ids_BT.shape[1]
        # Without a mask some models build their biases inline, where no builder is called.
        if call.get(mask_name) is not None:
            return call
        return {**call, mask_name: ids_BT.new_ones(ids_BT.shape[0], sum(lengths))}

    def restarted(bias: Any) -> Any:
        before, new = lengths
        if not before or not isinstance(bias, Tensor) or bias.shape[-1] != before + new:
            return bias
        # The new keys repeat the biases of the first ones, as if the history were not there.
        bias = bias.clone()
        bias[..., before:] = bias[..., :new].clone()
        return bias

    with _replaced(builders, restarted), injection.at_arguments(subject, note):
        yield


def _builders(subject: Subject) -> list[tuple[Any, str]]:
    """The functions named after linear biases in the modules that define the model, with those."""
    homes = {type(module).__module__ for module in subject.model.modules()}
    return [
        (sys.modules[home], name)
        for home in sorted(homes)
        for name, value in vars(sys.modules[home]).items()
        if NAME in name and callable(value)
    ]


@contextlib.contextmanager
def _replaced(builders: list[tuple[Any, str]], change: Callable[[Any], Any]) -> Iterator[None]:
    """Pass what the builders return through `change`."""
    originals = [(home, name, getattr(home, name)) for home, name in builders]

    def wrapped(built: Builder) -> Builder:
        return functools.wraps(built)(lambda *args, **named: change(built(*args, **named)))

    try:
        for home, name, built in originals:
            setattr(home, name, wrapped(built))
        yield
    finally:
        for home, name, built in originals:
            setattr(home, name, built)


def _used(subject: Subject, builders: list[tuple[Any, str]]) -> bool:
    """Whether a forward calls one of the builders for a bias for each of its keys."""
    widths: list[int] = []

    def note(bias: Any) -> Any:
        widths.append(bias.shape[-1] if isinstance(bias, Tensor) and bias.ndim else 0)
        return bias

    tokens = subject.inputs.tokens
    with _replaced(builders, note):
        subject.passes.cache(ForwardSpec(tokens, mask=all_ones(tokens), use_cache=True))
    return subject.inputs.length in widths


def _hypotheses(forward: WrongForward) -> Iterator[Hypothesis]:
    if forward.chunked and forward.attends and not forward.subject.can.takes_positions:
        yield Hypothesis(predict=partial(schedule.scheduled_logits, local=True))


FAULT = Fault(name="alibi-local", inject=inject, hypotheses={245: _hypotheses}, on_cache_only=True)
