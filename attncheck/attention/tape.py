"""Record every operation on one product until it has passed a softmax, so that they can be run
again.

Axes: B batch, H query heads, T query positions, S key positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from attncheck.attention.product import Product
from attncheck.numerics.widen import IN_PLACE

SOFTMAX = frozenset({F.softmax, torch.softmax, torch.Tensor.softmax})
EXP = frozenset({torch.exp, torch.Tensor.exp})
MINUS = frozenset({torch.sub, torch.Tensor.sub, torch.Tensor.__sub__})
OVER = frozenset({torch.div, torch.Tensor.div, torch.Tensor.__truediv__, torch.Tensor.true_divide})
"""A softmax may be written out: scores less their maximum, exponentials, over their sum."""
ONE = 1e-2
"""Weights add up to one within this in any precision."""
MOST_STEPS = 64
"""A product that goes through more operations than this before a softmax is no score."""


@final
@dataclass(frozen=True)
class _Step:
    """One operation; `outputs` are the tensors that it returned, or changed in place."""

    func: Callable[..., Any]
    args: tuple[Any, ...]
    named: Mapping[str, Any]
    outputs: tuple[Tensor, ...]


@final
@dataclass(eq=False)
class Tape:
    """The operations after one product, and the scores and weights of the softmax among them."""

    owner: nn.Module
    product: Product
    outcome: Tensor
    steps: list[_Step] = field(default_factory=list)
    known: dict[int, Tensor] = field(default_factory=dict)
    after: set[int] = field(default_factory=set)
    scores: Tensor | None = None
    weights: Tensor | None = None
    softmax_at: int = 0
    trouble: str = ""
    less: dict[int, tuple[Tensor, int]] = field(default_factory=dict)
    powers: dict[int, tuple[Tensor, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # by identity: views and copies of one tensor are equal and still different steps
        self.known[id(self.outcome)] = self.outcome

    def touches(self, args: Any) -> bool:
        """Whether any of these arguments comes from the product."""
        return any(id(each) in self.known for each in tensors_in(args))

    def follows_softmax(self, tensor: Tensor) -> bool:
        """Whether a tensor comes from the weights."""
        return id(tensor) in self.after

    def note(
        self, func: Callable[..., Any], args: tuple[Any, ...], named: Mapping[str, Any], output: Any
    ) -> None:
        """Record an operation on something that comes from the product."""
        changed = (args[0],) if _in_place(func) and args and isinstance(args[0], Tensor) else ()
        outputs = changed or tuple(tensors_in(output))
        if not outputs:
            return
        # a buffer was filled before the tape began, so a replay would lack its content
        if changed and id(changed[0]) not in self.known:
            self.trouble = "scores are written into a buffer"
        if func in SOFTMAX:
            self._softmax(args, named, outputs[0])
        elif any(id(each) in self.after for each in tensors_in((args, named))):
            self.after |= {id(each) for each in outputs}
        else:
            self._written_out(func, args, outputs[0])
        self.steps.append(_Step(func, args, named, outputs))
        self.known.update({id(each): each for each in outputs})

    def _softmax(self, args: tuple[Any, ...], named: Mapping[str, Any], weights: Tensor) -> None:
        source = args[0] if args else named["input"]
        dim = named.get("dim", args[1] if len(args) > 1 else None)
        if self.weights is not None:
            self.trouble = "its scores pass more than one softmax"
        elif dim not in (-1, source.ndim - 1):
            self.trouble = "the softmax is not over the last axis"
        self.scores, self.weights, self.softmax_at = source, weights, len(self.steps)
        self.after = {id(weights)}

    def _written_out(self, func: Callable[..., Any], args: tuple[Any, ...], output: Tensor) -> None:
        """Note a step of a softmax that is written out."""
        source = args[0] if args else None
        if not isinstance(source, Tensor) or id(source) not in self.known:
            return
        if func in MINUS:
            self.less[id(output)] = source, len(self.steps)
        elif func in EXP:
            self.powers[id(output)] = self.less.get(id(source), (source, len(self.steps)))
        elif func in OVER and id(source) in self.powers and self.weights is None:
            sums = output.sum(-1)
            if bool(((sums - 1).abs() < ONE)[sums.isfinite()].all()):
                self.scores, self.softmax_at = self.powers[id(source)]
                self.weights, self.after = output, {id(output)}

    def replay(self, left: Tensor, right: Tensor, wanted: Tensor) -> Tensor:
        """`wanted`, a tensor on this tape, recomputed with other operands in the product."""
        env: dict[int, Tensor] = {id(self.outcome): self.product.run(left, right)}
        # the softmax itself is the first step that the scores do not need
        stop = self.softmax_at if wanted is self.scores else len(self.steps)
        for step in self.steps[:stop]:
            args, named = tree_map(
                lambda leaf: env.get(id(leaf), leaf), (step.args, dict(step.named))
            )
            output = step.func(*args, **named)
            in_place = _in_place(step.func)
            news = [env[id(step.outputs[0])]] if in_place else list(tensors_in(output))
            env.update({id(old): new for old, new in zip(step.outputs, news, strict=True)})
        return env[id(wanted)]


def _in_place(func: Callable[..., Any]) -> bool:
    name = getattr(func, "__name__", "")
    ends_so = name.endswith("_") and not name.endswith("__")
    return name in IN_PLACE or name == "__setitem__" or ends_so


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors among nested lists, tuples and dictionaries."""
    return (leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor))
