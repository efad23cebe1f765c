"""Faults of linear biases in place of positions.

Axes: S key positions, P cached positions, T positions of this call.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from attncheck.core.errors import CannotInject
from attncheck.faults.engine.inject import at_arguments, tokens_before
from attncheck.model.forward_spec import ForwardSpec, all_ones
from attncheck.model.subject import Subject

NAME = "alibi"


def _builders(subject: Subject) -> list[tuple[Any, str]]:
    """Every function that builds linear biases, with its owner: in the modules that define the
    model, by its name.
    """
    homes = {type(module).__module__ for module in subject.model.modules()}
    return [
        (sys.modules[home], name)
        for home in sorted(homes)
        for name, value in vars(sys.modules[home]).items()
        if NAME in name and callable(value)
    ]


@contextlib.contextmanager
def _replaced(
    builders: list[tuple[Any, str]], wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    originals = [(home, name, getattr(home, name)) for home, name in builders]
    try:
        for home, name, built in originals:
            setattr(home, name, wrap(built))
        yield
    finally:
        for home, name, built in originals:
            setattr(home, name, built)


@contextlib.contextmanager
def alibi_local(subject: Subject) -> Iterator[None]:
    """In a cached call, the biases of the new keys count from 0 again instead of over the whole
    history.
    """
    builders = _builders(subject)
    if not subject.can.mask_2d or not builders or not _used(subject, builders):
        raise CannotInject(
            "the model builds no linear biases, one for each key, that can be reached"
        )
    lengths = [0, 0]

    def note(call: dict[str, Any]) -> dict[str, Any]:
        ids_BT, mask_name = (
            call[subject.forward_adapter.ids_name],
            str(subject.forward_adapter.mask_name),
        )
        lengths[:] = tokens_before(subject, call), ids_BT.shape[1]
        # with a mask the biases come from the builder everywhere; without one some models make them
        # inline
        return (
            call
            if call.get(mask_name) is not None
            else {**call, mask_name: ids_BT.new_ones(ids_BT.shape[0], sum(lengths))}
        )

    with (
        _replaced(builders, lambda built: _restarting(built, lengths)),
        at_arguments(subject, note),
    ):
        yield


def _used(subject: Subject, builders: list[tuple[Any, str]]) -> bool:
    """Whether a forward asks one of the builders for a bias for each of its keys."""
    seen: list[int] = []

    def watching(built: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(built)
        def build(*args: Any, **named: Any) -> Any:
            bias = built(*args, **named)
            seen.append(bias.shape[-1] if isinstance(bias, Tensor) and bias.ndim else 0)
            return bias

        return build

    with _replaced(builders, watching):
        subject.passes.cache(
            ForwardSpec(subject.inputs.tokens, mask=all_ones(subject.inputs.tokens), use_cache=True)
        )
    return subject.inputs.length in seen


def _restarting(built: Callable[..., Any], lengths: list[int]) -> Callable[..., Any]:
    @functools.wraps(built)
    def build(*args: Any, **named: Any) -> Any:
        bias = built(*args, **named)
        before, new = lengths
        if not before or not isinstance(bias, Tensor) or bias.shape[-1] != before + new:
            return bias
        bias = bias.clone()
        bias[..., before:] = bias[..., :new].clone()
        return bias

    return build
