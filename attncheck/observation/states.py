"""Recurrent and convolution states that change between two calls: what a layer finds is not what it
left.

The proof is a repair: with what each layer left put back before it reads it, the failing call gives
the right logits.

Axes: B batch, N numbers of one state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn

from attncheck.attention.layers import layer_lists
from attncheck.model.caches import CachedTensor, states
from attncheck.model.compat import CACHE_NAMES
from attncheck.numerics.divergence import max_abs
from attncheck.numerics.hooks import hooked
from attncheck.observation.convolutions import ConvolutionStates
from attncheck.observation.deviation import Deviation
from attncheck.observation.vectors import Matcher, VectorChange

Path = tuple[str, ...]
HALF = (torch.bfloat16, torch.float16)
TELLING = 32
"""So many numbers are not all those of half a precision by chance."""


@final
@dataclass
class StateKeeper:
    """Compares what each layer finds in the cache with what it left there in the call before; with
    `repairs` it puts that back.

    `relative` is the difference that rounding explains, as a share of the largest value. What a
    layer leaves in `convolutions` is repaired as well. `coarse` are states that a half precision
    holds whole.
    """

    model: nn.Module
    relative: float
    repairs: bool = False
    convolutions: ConvolutionStates | None = None
    left: dict[Path, Tensor] = field(default_factory=dict)
    tokens: dict[int, int] = field(default_factory=dict)
    deviations: list[Deviation] = field(default_factory=list)
    coarse: list[Deviation] = field(default_factory=list)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """While active, every layer's states are compared when it begins and kept when it ends."""
        layers = [pair for each in layer_lists(self.model) for pair in enumerate(each)]
        with hooked(handle for number, layer in layers for handle in self._hooks(number, layer)):
            yield

    def _hooks(self, number: int, layer: nn.Module) -> Iterator[Any]:
        def before(module: nn.Module, args: Any, named: dict[str, Any]) -> None:
            for each in _states_of(number, args, named):
                if each.path in self.left:
                    self._compare(number, each, _length(args, named))

        def after(module: nn.Module, args: Any, named: dict[str, Any], output: Any) -> None:
            start = self.tokens.get(number, 0)
            self.tokens[number] = start + _length(args, named)
            for each in _states_of(number, args, named):
                if self.convolutions is not None:
                    self.convolutions.repair(number, each, start, self.tokens[number])
                self.left[each.path] = each.tensor.detach().clone()
                self._note_precision(number, each, start)

        yield layer.register_forward_pre_hook(before, with_kwargs=True)
        yield layer.register_forward_hook(after, with_kwargs=True)

    def _note_precision(self, number: int, each: CachedTensor, start: int) -> None:
        dtype = _holding(each.tensor)
        if dtype:
            self.coarse.append(
                Deviation(
                    what="state",
                    how="rounded",
                    layer=number,
                    start=start,
                    dtype=dtype,
                    module=each.name,
                )
            )

    def _compare(self, number: int, found: CachedTensor, length: int) -> None:
        left = self.left[found.path]
        if left.shape != found.tensor.shape or torch.equal(left, found.tensor):
            return
        start = self.tokens.get(number, 0)
        for row, change in self._changes(found, left).items():
            self.deviations.append(
                Deviation(
                    what="state",
                    how="lost" if change.how == "zero" else change.how,
                    layer=number,
                    row=row,
                    start=start,
                    when="step" if length == 1 else "chunk",
                    amount=change.amount,
                    dtype=change.dtype,
                    source=change.source,
                    module=found.name,
                    opaque=change.how == "another function",
                    channels=change.channels,
                )
            )
        if self.repairs:
            with torch.no_grad():
                found.tensor.copy_(left)

    def _changes(self, found: CachedTensor, left: Tensor) -> dict[int, VectorChange]:
        """What was done to the state of each row."""
        observed_B11N, left_B11N = (each.flatten(1)[:, None, None] for each in (found.tensor, left))
        beside = (
            (path, state.flatten(1)[:, None, None])
            for path, state in self.left.items()
            if path != found.path and state.shape == left.shape
        )
        others = {CachedTensor(path, state).layer or 0: state for path, state in beside}
        rows = left.shape[0]
        token_B11 = torch.zeros(rows, 1, 1, dtype=torch.long, device=left.device)
        limit = self.relative * max(max_abs(left), 1e-30)
        needed_B11 = torch.ones_like(token_B11, dtype=torch.bool)
        matches = Matcher(
            observed_B11N, left_B11N, token_B11, (0,), needed_B11, limit, others=others
        ).run()
        return {row: change for (row, _, _), change in matches.changes.items()}


def _holding(state: Tensor) -> str:
    """The half precision that holds a state whole; "" where none does, or there is little to tell
    by.
    """
    if not state.is_floating_point() or int(state.count_nonzero()) < TELLING:
        return ""
    coarser = (each for each in HALF if torch.finfo(each).eps > torch.finfo(state.dtype).eps)
    found = (each for each in coarser if torch.equal(state.to(each).to(state.dtype), state))
    return str(next(found, "")).removeprefix("torch.")


def _length(args: Any, named: dict[str, Any]) -> int:
    """How many tokens a layer gets."""
    tensors = (each for each in (*args, *named.values()) if isinstance(each, Tensor))
    return next((each.shape[1] for each in tensors if each.ndim == 3), 0)


def _states_of(number: int, args: Any, named: dict[str, Any]) -> list[CachedTensor]:
    """The states of one layer in the cache that it is passed."""
    given = [named[name] for name in CACHE_NAMES if named.get(name) is not None]
    given += [each for each in args if hasattr(each, "__dict__") and not isinstance(each, Tensor)]
    cache = next(iter(given), None)
    return [each for each in states(cache) if each.layer == number]


def changed_states(
    model: nn.Module, run: Callable[[], Tensor], relative: float
) -> tuple[list[Deviation], Tensor | None]:
    """The states that changed between calls of a run, and the logits with each put back; None where
    nothing changed.
    """
    seen, repairing = (StateKeeper(model, relative, repairs) for repairs in (False, True))
    with seen.watching():
        run()
    if not seen.deviations:
        return [], None
    with repairing.watching():
        logits_BTV = run()
    return seen.deviations, logits_BTV


def coarse_states(model: nn.Module, run: Callable[[], object]) -> list[Deviation]:
    """The states that layers leave in a run and that a half precision holds whole."""
    keeper = StateKeeper(model, 0.0)
    with keeper.watching():
        run()
    return keeper.coarse


def left_states(
    model: nn.Module, run: Callable[[], Tensor], convolutions: ConvolutionStates
) -> tuple[list[Deviation], Tensor | None]:
    """The convolution states that layers leave wrong in a run, and the logits with each repaired;
    None where all are right.
    """
    keeper = StateKeeper(model, convolutions.relative, convolutions=convolutions)
    with keeper.watching():
        logits_BTV = run()
    found = convolutions.deviations
    return found, logits_BTV if found else None
