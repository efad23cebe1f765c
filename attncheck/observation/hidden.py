"""A module outside attention whose inputs agree and whose output does not: what was done to it.

Axes: B batch, T positions, W hidden width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from attncheck.attention.layers import layer_number
from attncheck.core.observed_part import What
from attncheck.faults.engine.expected import chunk_bounds
from attncheck.model.forward_spec import ForwardSpec
from attncheck.numerics.divergence import max_abs
from attncheck.numerics.hooks import hooked
from attncheck.numerics.module_outputs import (
    Event,
    ModuleOutputs,
    first_tensor,
    last_calls,
    of_tokens,
    recording,
)
from attncheck.observation.deviation import Deviation
from attncheck.observation.vectors import Matcher, Matches, VectorChange

Run = Callable[[], object]


def _seen(module: nn.Module, event: Event, args: Any, named: Any, output: Any) -> Tensor | None:
    """The hidden tensor of an event: what enters a module, or what leaves it."""
    if event[1] == "out":
        return first_tensor(of_tokens(module, getattr(output, "logits", output)))
    return first_tensor(args or [named[key] for key in named if "hidden" in key])


@contextlib.contextmanager
def recorded_outputs(model: nn.Module, event: Event) -> Iterator[list[Tensor]]:
    """While active, the hidden tensors of an event are kept."""
    found: list[Tensor] = []
    module = model.get_submodule(event[0])

    def hook(module: nn.Module, args: Any, named: Any, output: Any = None) -> None:
        tensor = _seen(module, event, args, named, output)
        if tensor is not None:
            found.append(tensor.detach().clone())

    with hooked([_hook(module, event, hook)]):
        yield found


def _hook(module: nn.Module, event: Event, hook: Any, first: bool = False) -> Any:
    """Add a hook for an event, `first` of all so that recorders see what it changes."""
    if event[1] == "out":
        return module.register_forward_hook(hook, with_kwargs=True, prepend=first)
    return module.register_forward_pre_hook(hook, with_kwargs=True, prepend=first)


@final
@dataclass(frozen=True)
class ChangedOutput:
    """What enters or leaves one module on the failing forward, as edits of what should."""

    event: Event
    states_BTW: Tensor
    deviations: tuple[Deviation, ...]
    opaque: bool

    @contextlib.contextmanager
    def replacing(self, model: nn.Module) -> Iterator[None]:
        """While active, full forwards have the changed states there."""

        def hook(module: nn.Module, args: Any, named: Any, output: Any = None) -> Any:
            tensor = _seen(module, self.event, args, named, output)
            if tensor is None or tensor.shape[1] != self.states_BTW.shape[1]:
                return None
            # a table of positions may give one sequence for the whole batch
            new = self.states_BTW[: tensor.shape[0]].reshape(tensor.shape)
            if self.event[1] == "out":
                return _with_states(output, tensor, new)
            kept = {key: new if value is tensor else value for key, value in named.items()}
            return tuple(new if each is tensor else each for each in args), kept

        module = model.get_submodule(self.event[0])
        with hooked([_hook(module, self.event, hook, first=True)]):
            yield


def _with_states(output: Any, old: Tensor, new: Tensor) -> Any:
    """The same output with one tensor replaced."""
    if isinstance(output, (tuple, list)):
        return type(output)(new if each is old else each for each in output)
    return new.reshape(output.shape) if isinstance(output, Tensor) else new


def changed_output(
    event: Event,
    what: What,
    states: tuple[Tensor, Tensor],
    spec: ForwardSpec,
    real_BT: Tensor | None,
    relative: float,
    heads: int = 1,
) -> ChangedOutput | None:
    """The edits that take the right states to the observed ones (`states` is (observed, right));
    None where they have other shapes. With several `heads` each head's part is matched by itself.
    """
    if states[0].shape != states[1].shape:
        return None
    observed_BHTD, right_BHTD = (_by_head(each, heads) for each in states)
    expected_BHT = torch.arange(spec.length).expand(observed_BHTD.shape[:3])
    needed_BHT = torch.ones_like(expected_BHT, dtype=torch.bool)
    if real_BT is not None:
        needed_BHT = needed_BHT & real_BT[:, None]
    limit = relative * max_abs(right_BHTD[right_BHTD.isfinite()])
    own = tuple(range(heads))
    matches = Matcher(observed_BHTD, right_BHTD, expected_BHT, own, needed_BHT, limit).run()
    _explain_edges(matches, spec.length)
    found = tuple(_deviations(event, what, matches, spec, heads))
    predicted_BTW = matches.predicted_BGSD.transpose(1, 2).reshape(states[1].shape)
    return ChangedOutput(event, predicted_BTW, found, matches.opaque > 0)


def _explain_edges(matches: Matches, length: int) -> None:
    """Where every other token of a sequence is the one n before or after, what is no vector of it
    at its edge is that of what stands beyond: of padding, or of a longer sequence.
    """
    for lane in {place[:2] for place in matches.changes}:
        changes = {place: each for place, each in matches.changes.items() if place[:2] == lane}
        strange = {place for place, each in changes.items() if each.how == "another function"}
        moved = {each.amount for place, each in changes.items() if place not in strange}
        amount = moved.pop() if len(moved) == 1 else None
        if amount is None or len(changes) < length:
            continue
        if all(not 0 <= place[2] + amount < length for place in strange):
            known = {place: VectorChange("other token", amount) for place in strange}
            matches.changes.update(known)
            matches.opaque -= len(known)


def looked_up(
    event: Event,
    table: nn.Embedding,
    states: tuple[Tensor, Tensor],
    spec: ForwardSpec,
    real_BT: Tensor | None,
    relative: float,
) -> ChangedOutput | None:
    """What a table of positions returned, (observed, right), as other rows of it; None where some
    of it is none of its rows.
    """
    weight_NW = table.weight.detach().to(states[0].dtype)
    nearest = [torch.cdist(each, weight_NW[None], p=float("inf")).min(-1) for each in states]
    if max(max_abs(each.values) for each in nearest) > relative * max_abs(weight_NW):
        return None
    moved_BT = nearest[0].indices - nearest[1].indices
    moved_BT = moved_BT if real_BT is None else moved_BT * real_BT.to(moved_BT.device)
    changes = {
        (b, 0, t): VectorChange("other token", float(moved), source=(b, 0, t + moved))
        for b, t in moved_BT.nonzero().tolist()
        for moved in [int(moved_BT[b, t])]
    }
    matches = Matches(states[0][:, None], changes)
    return ChangedOutput(
        event, states[0], tuple(_deviations(event, "hidden", matches, spec, 1)), False
    )


def without_bias(
    event: Event,
    module: nn.Module,
    states: tuple[Tensor, Tensor],
    spec: ForwardSpec,
    real_BT: Tensor | None,
    relative: float,
) -> ChangedOutput | None:
    """What a module returned, (observed, right), as what it must return less its own bias; None
    where that does not give all of it.
    """
    observed_BTW, right_BTW = states
    limit = relative * max_abs(right_BTW[right_BTW.isfinite()])
    wrong_BT = ((observed_BTW - right_BTW).abs() > limit).any(-1)
    wrong_BT = wrong_BT if real_BT is None else wrong_BT & real_BT.to(wrong_BT.device)
    for bias_W in module.parameters(recurse=False):
        if bias_W.shape != right_BTW.shape[-1:]:
            continue
        less_BTW = torch.where(wrong_BT[..., None], right_BTW - bias_W.to(right_BTW), right_BTW)
        if not bool(((observed_BTW - less_BTW).abs() <= limit)[wrong_BT].all()):
            continue
        changes = {(b, 0, t): VectorChange("bias") for b, t in wrong_BT.nonzero().tolist()}
        found = _deviations(event, "hidden", Matches(less_BTW[:, None], changes), spec, 1)
        return ChangedOutput(event, less_BTW, tuple(found), False)
    return None


def _by_head(states_BTW: Tensor, heads: int) -> Tensor:
    flat_BTW = states_BTW.flatten(2)
    return flat_BTW.reshape(*flat_BTW.shape[:2], heads, -1).transpose(1, 2).contiguous()


def _deviations(
    event: Event, what: What, matches: Matches, spec: ForwardSpec, heads: int
) -> Iterator[Deviation]:
    bounds = chunk_bounds(spec)
    number = layer_number(event[0])
    for (row, head, position), change in matches.changes.items():
        start, stop = next(bound for bound in bounds if bound[0] <= position < bound[1])
        when = "prefill" if not start else "step" if stop - start == 1 else "chunk"
        yield Deviation(
            what=what,
            how=change.how,
            layer=-1 if number is None else number,
            module=event[0],
            entering=event[1] == "in",
            row=row,
            head=head if heads > 1 else -1,
            heads=heads,
            at=position,
            start=start,
            when=when,
            amount=change.amount,
            dtype=change.dtype,
            source=change.source,
            opaque=change.how == "another function",
            channels=change.channels,
        )


def _weights(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters()
    yield from (each for each in module.buffers() if each.ndim > 1)


def hidden_modules(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that hidden states pass: all within layers, and others that hold weights or a
    table (as sinusoidal positions are).
    """
    named = {name: module for name, module in model.named_modules() if name}
    return {
        name: module
        for name, module in named.items()
        if layer_number(name) is not None or any(True for _ in _weights(module))
    }


def states_at(model: nn.Module, event: Event, run: Run, shape: tuple[int, int]) -> Tensor | None:
    """states_BTW of one event over a whole forward of (B, T) tokens."""
    with recorded_outputs(model, event) as found:
        run()
    states = last_calls(found, shape[1])
    alone = states is not None and states.shape[0] == 1
    return states.expand(shape[0], *states.shape[1:]) if states is not None and alone else states


def prints_of(model: nn.Module, run: Run, shape: tuple[int, int]) -> ModuleOutputs:
    """The fingerprints of every module during one forward."""
    with recording(hidden_modules(model)) as recorder:
        run()
    return recorder.outputs(shape)
