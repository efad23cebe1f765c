"""Where the gradient is cut: the last layer whose weights get a wrong one, and which weights, or
rows of them, get none at all.

Axes: N rows or columns of a weight.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor, nn

from attncheck.attention.layers import LAYER
from attncheck.core.errors import Unsupported
from attncheck.model.directional_derivatives import derivative_along, gradient_by_rows
from attncheck.model.subject import Subject
from attncheck.numerics.shift import Direction, drawn

SEED = 77
Weights = dict[str, nn.Parameter]


@final
@dataclass(frozen=True, kw_only=True)
class WrongGradient:
    """A weight whose gradient is not its derivative, by the name of its module.

    `lost` says that it gets none, or some of its rows or columns do: `part` names these.
    """

    name: str
    lost: bool
    part: str = ""


@final
@dataclass(frozen=True, kw_only=True)
class CutGradient:
    """The last layer with wrong gradients, and the name of the next one, whose are right.

    `whole` says that no weight of the layer gets a gradient.
    """

    layer: str
    weights: tuple[WrongGradient, ...]
    whole: bool = False
    after: str = ""

    @property
    def lost(self) -> bool:
        """Whether some weight, or a part of one, gets no gradient although the logits need it."""
        return any(each.lost for each in self.weights)

    @property
    def module(self) -> str:
        """The innermost module that holds all weights at fault."""
        shared = self.layer.split(".") if self.whole else _shared(each.name for each in self._shown)
        return ".".join(shared)

    @property
    def text(self) -> str:
        """Which weights get no gradient, or a wrong one, and from where on they are right."""
        names = ", ".join(f"{each.part}{each.name}" for each in self._shown)
        weights = f"any matrix of {self.layer}" if self.whole else names
        after = f"; from {self.after} on, gradients are right" if self.after else ""
        if self.lost:
            return f"no gradient reaches {weights}{after}"
        return f"the gradient of {weights} is not the derivative{after}"

    @property
    def _shown(self) -> tuple[WrongGradient, ...]:
        return tuple(each for each in self.weights if each.lost) or self.weights


def _shared(names: Iterator[str]) -> list[str]:
    """The parts of dotted paths that all begin with."""
    paths = [name.split(".") for name in names]
    found = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        found.append(parts[0])
    return found


def cut_gradient(subject: Subject) -> CutGradient | None:
    """Where the gradient is cut last before the logits, found by halving the layers; None where
    every layer alone has the right one.

    Raises:
        Unsupported: a layer has a kink, or a kernel has no gradient.
    """
    layers = layers_with_weights(subject.model)
    names = list(layers)
    wrong, right = -1, len(names)
    while right - wrong > 1:
        middle = (wrong + right) // 2
        if _is_wrong(subject, layers[names[middle]]):
            wrong = middle
        else:
            right = middle
    if wrong < 0:
        return None
    layer = names[wrong]
    found = [_wrong_weight(subject, *each) for each in layers[layer].items()]
    weights = tuple(each for each in found if each is not None)
    if not weights:
        return None
    return CutGradient(
        layer=layer,
        weights=weights,
        whole=len(found) > 1 and all(each and each.lost and not each.part for each in found),
        after=names[right] if right < len(names) else "",
    )


def layers_with_weights(model: nn.Module) -> dict[str, Weights]:
    """The matrices of each layer, by the name of their module, in the order of the model."""
    found: dict[str, Weights] = {}
    for name, weight in model.named_parameters():
        layer = _layer(name)
        if layer and weight.ndim == 2 and weight.is_floating_point():
            found.setdefault(layer, {})[name.removesuffix(".weight")] = weight
    return found


def _layer(name: str) -> str:
    """The path of the outermost layer that holds a parameter; empty where none does."""
    parts = name.split(".")
    paths = (".".join(parts[:end]) for end in range(2, len(parts)))
    return next((path for path in paths if LAYER.fullmatch(path)), "")


def _is_wrong(subject: Subject, weights: Weights) -> bool:
    found = derivative_along(subject, drawn(weights.values(), SEED))
    if not found.decides:
        raise Unsupported("a kink, or nothing to see, in the derivative of one layer")
    return found.wrong


def _wrong_weight(subject: Subject, name: str, weight: nn.Parameter) -> WrongGradient | None:
    """One weight by itself; of a fused one the rows or columns that get no gradient."""
    (direction,) = drawn([weight], SEED)
    found = derivative_along(subject, [direction])
    if not found.wrong:
        return None
    if found.analytic == 0.0:
        return WrongGradient(name=name, lost=True)
    for columns in (False, True):
        share_N = gradient_by_rows(subject, direction, columns)
        lost_N = share_N == 0.0
        part = _only(direction, lost_N, columns)
        if bool(lost_N.any()) and derivative_along(subject, [part]).wrong:
            return WrongGradient(name=name, lost=True, part=_part(lost_N, columns))
    return WrongGradient(name=name, lost=False)


def _only(direction: Direction, kept_N: Tensor, columns: bool) -> Direction:
    """The direction with all rows, or columns, at rest but these."""
    kept_N = kept_N.to(direction.left_O)
    if columns:
        return replace(direction, right_I=direction.right_I * kept_N)
    return replace(direction, left_O=direction.left_O * kept_N)


def _part(lost_N: Tensor, columns: bool) -> str:
    """The rows or columns in words: libraries keep outputs in either."""
    numbers = torch.nonzero(lost_N).flatten().tolist()
    kind = "columns" if columns else "rows"
    return f"{kind} {numbers[0]}..{numbers[-1]} (of {len(lost_N)}) of "
