"""Weights of a port that are the reference's times a factor, rounded to the dtype that they are
stored in: an embedding with its scale in it, queries with the scale of scores, a norm with its one,
positions with the row of the token type.

Folding and casting do not commute, so that two right models differ by one rounding of each weight.
The decoder gets the port's own numbers there; any larger difference stays a fault.

Axes: R rows, C columns.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from attncheck.compare.decoder.spec import (
    AttentionSpec,
    DecoderSpec,
    ExpertsSpec,
    NormSpec,
    Projection,
)
from attncheck.compare.edits.weights import readings
from attncheck.model.precision import DTYPES

SAMPLE = 64
ROUNDINGS = 3
"""Of the weight of the reference, of the port's, and of the factor, half an eps each."""
Factors = tuple[float, ...]


def as_rounded(spec: DecoderSpec, model: nn.Module, stated: str) -> DecoderSpec:
    """The decoder with the weights of a port that is stored in the dtype `stated`, where they are
    one rounding away.
    """
    dtype = DTYPES.get(stated, torch.float64)
    if dtype == torch.float64:
        return spec
    held = (*model.parameters(), *model.buffers())
    values = [each.detach().cpu().double() for each in held if not each.is_meta]
    found: DecoderSpec = _Rounded(torch.finfo(dtype).eps, values).of(spec)
    return found


class _Rounded:
    """Looks for rounded weights among the values of a port."""

    def __init__(self, eps: float, values: list[Tensor]) -> None:
        self.eps = eps
        self.vectors = [each for each in values if each.ndim == 1]
        self.matrices = [each for each in values if each.ndim == 2]
        self.matrices += [each for stack in values if stack.ndim == 3 for each in stack]
        self.memory: dict[tuple[int, Factors], Tensor] = {}

    def of(self, part: Any, factors: Factors = (1.0,)) -> Any:
        """A part of a decoder with its weights replaced; `factors` may be folded into them."""
        if isinstance(part, tuple):
            return tuple(self.of(each) for each in part)
        if isinstance(part, NormSpec):
            return part if part.weight is None else replace(part, weight=self._norm(part))
        if isinstance(part, Projection):
            return replace(part, weight=self._matrix(part.weight, factors))
        if not hasattr(part, "__dataclass_fields__"):
            return part
        changed = {each.name: self.of(getattr(part, each.name)) for each in fields(part)}
        if isinstance(part, DecoderSpec):
            changed["table"] = self._matrix(part.table, (1.0, part.scale))
            changed["positions"] = self._positions(part)
        if isinstance(part, AttentionSpec):
            changed["query"] = self.of(part.query, (1.0, part.scale))
        if isinstance(part, ExpertsSpec):
            changed["correction"] = self._vector(part.correction)
        return replace(part, **changed)

    def _vector(self, ours: Tensor | None) -> Tensor | None:
        """A vector that one side keeps in a higher precision than the other."""
        alike = [each for each in self.vectors if ours is not None and each.shape == ours.shape]
        found = None if ours is None else self._nearest(ours, alike, (1.0,))
        return ours if found is None else found

    def _positions(self, spec: DecoderSpec) -> Tensor | None:
        """A table of positions into which the port has added the row that goes to all."""
        ours, added = spec.positions, spec.added
        if ours is None or added is None or any(torch.equal(each, ours) for each in self.matrices):
            return ours
        limit = ROUNDINGS * self.eps / 2 * (ours.abs() + added.abs())
        for theirs in self.matrices:
            if theirs.shape == ours.shape and bool(((theirs - ours - added).abs() <= limit).all()):
                return theirs - added
        return ours

    def _norm(self, norm: NormSpec) -> Tensor:
        assert norm.weight is not None
        whole = norm.offset + norm.weight
        if any(torch.equal(each, norm.weight) for each in self.vectors):
            return norm.weight
        alike = [each for each in self.vectors if each.shape == whole.shape]
        # a norm of queries whose neighbours rotate together has its channels in pairs
        same = [*alike, *(torch.cat([each[::2], each[1::2]]) for each in alike)]
        found = self._nearest(whole, same, (1.0,))
        return norm.weight if found is None else found - norm.offset

    def _matrix(self, weight_RC: Tensor, factors: Factors) -> Tensor:
        key = id(weight_RC), factors
        if key not in self.memory:
            parts = (p for each in self.matrices for p in readings(each, weight_RC.shape))
            found = self._nearest(weight_RC, parts, factors)
            self.memory[key] = weight_RC if found is None else found
        return self.memory[key]

    def _nearest(
        self, ours: Tensor, candidates: Iterable[Tensor], factors: Factors
    ) -> Tensor | None:
        """The first candidate that is ours times a factor up to roundings, divided by the factor; a
        factor other than 1 first, since a port that holds both computes with that. None where there
        is none or ours itself stands there.
        """
        parts = list(candidates)
        for factor in sorted(set(factors), key=lambda each: each == 1.0):
            if factor == 1.0 and any(torch.equal(each, ours) for each in parts):
                return None
            for theirs in parts:
                few = theirs.flatten()[:SAMPLE], ours.flatten()[:SAMPLE]
                if self._rounded(*few, factor) and self._rounded(theirs, ours, factor):
                    return theirs / factor
        return None

    def _rounded(self, theirs: Tensor, ours: Tensor, factor: float) -> bool:
        limit = ROUNDINGS * self.eps / 2 * abs(factor) * ours.abs()
        return bool(((theirs - factor * ours).abs() <= limit).all())
