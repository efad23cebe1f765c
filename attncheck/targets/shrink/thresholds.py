"""Numbers of a config at which its model begins to do something else, found by trying.

A field that no rule of sizes knows is made small. Where the logits of a row shorter than that stay
within rounding, and those of a longer row do not stay to the bit, the field is such a number: a
floor of a scale, a capacity of experts, a block. It stays small, and inputs cross the first
position that it moved.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from attncheck.model.facts import FOUND, Boundary, configs_in
from attncheck.model.forward import adapted_forward
from attncheck.numerics.divergence import beyond, max_abs
from attncheck.targets.shrink.rules import keep, size_of
from attncheck.targets.shrink.shrink import TOKEN_IDS

SMALL = 8
SHORT, LONG = 6, 48
FIRST_ID = 11
ROUNDING = 1e-5
THRESHOLD = "threshold"
Draw = Callable[[Any], nn.Module]
Place = tuple[int, str]
"""The number of a config among those in it, and a field."""


@final
@dataclass(frozen=True)
class _Outcome:
    """The logits of a short and of a long row, and the shapes of the weights."""

    short_BTV: Tensor
    long_BTV: Tensor
    shapes: tuple[tuple[str, torch.Size], ...]


def with_thresholds(config: Any, draw: Draw) -> nn.Module:
    """The model that `draw` makes of a config in which every such number is small."""
    model = draw(config)
    usual = _outcome(model)
    if usual is None:
        return model
    lengths = {place: _decides(config, place, draw, usual) for place in _candidates(config)}
    found = {place: length for place, length in lengths.items() if length}
    if not found:
        return model
    model = draw(_with_small(config, *found))
    boundaries = (Boundary(kind=THRESHOLD, length=length) for length in {*found.values()})
    setattr(model, FOUND, tuple(boundaries))
    return model


def _candidates(config: Any) -> Iterator[Place]:
    """The fields that hold a large number of which no rule knows what it is."""
    for part, each in enumerate(configs_in(config)):
        for name, value in vars(each).items():
            number = isinstance(value, int) and not isinstance(value, bool) and value > SMALL
            if number and size_of(name) is keep and not TOKEN_IDS.fullmatch(name):
                yield part, name


def _with_small(config: Any, *places: Place) -> Any:
    small = copy.deepcopy(config)
    parts = list(configs_in(small))
    for part, name in places:
        setattr(parts[part], name, SMALL)
    return small


def _decides(config: Any, place: Place, draw: Draw, usual: _Outcome) -> int:
    """The length of row from which a small value of this field changes what the model does; 0 where
    it is no such number.
    """
    try:
        tried = _outcome(draw(_with_small(config, place)))
    except Exception:  # whatever a class says to a value that it does not take
        return 0
    if tried is None or tried.shapes != usual.shapes or not tried.long_BTV.isfinite().all():
        return 0
    moved_T = (tried.long_BTV != usual.long_BTV).any(-1)[0].nonzero()
    slack = ROUNDING * max_abs(usual.short_BTV)
    if beyond(tried.short_BTV, usual.short_BTV, slack) or not len(moved_T):
        return 0
    return max(SMALL, int(moved_T[0]))


def _outcome(model: nn.Module) -> _Outcome | None:
    """What a model gives for both rows; None where it cannot be called that way."""
    pool = tuple(range(FIRST_ID, FIRST_ID + LONG))
    try:
        adapter = adapted_forward(model.eval(), pool)
        with torch.no_grad():
            short_BTV, long_BTV = (
                adapter.call(torch.tensor([pool[:length]]), use_cache=False).logits_BTV
                for length in (SHORT, LONG)
            )
    except Exception:  # the builder says what is wrong with a model that cannot be called
        return None
    shapes = tuple((name, each.shape) for name, each in model.named_parameters())
    return _Outcome(short_BTV, long_BTV, shapes)
