"""Controls of the gate: would it see one head of one layer that is lost?"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, final

from torch import Tensor, nn

from attncheck.attention.layers import attention_modules
from attncheck.core.errors import CannotInject
from attncheck.core.finding import Control
from attncheck.golden.calls import GoldenCall
from attncheck.golden.file import GoldenEntry
from attncheck.golden.holding import HeldCall, held
from attncheck.golden.measured import measured
from attncheck.model.subject import Subject
from attncheck.model.weights import SavedBuffers
from attncheck.numerics.hooks import hooked
from attncheck.numerics.module_outputs import Event, first_tensor

FEW_HEADS = 4


@final
@dataclass(frozen=True)
class LostHead:
    """The place of a control: the module that gets, or gives, a head too few."""

    event: Event
    heads: int

    @property
    def words(self) -> str:
        """What is injected."""
        name, side = self.event
        return (
            f"1 of {self.heads} heads lost in what {'enters' if side == 'in' else 'leaves'} {name}"
        )

    @contextlib.contextmanager
    def injected(self, model: nn.Module) -> Iterator[None]:
        """While active, the first head's share of the width is zero there."""
        module = model.get_submodule(self.event[0])

        def before(module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
            return tuple(self._without(each) for each in args), named

        def after(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            if isinstance(output, tuple):
                return tuple(self._without(each) for each in output)
            return self._without(output)

        if self.event[1] == "in":
            handle = module.register_forward_pre_hook(before, prepend=True, with_kwargs=True)
        else:
            handle = module.register_forward_hook(after, prepend=True)
        with hooked([handle]):
            yield

    def _without(self, value: Any) -> Any:
        tensor = first_tensor(value)
        if tensor is None or tensor is not value:
            return value
        changed: Tensor = tensor.clone()
        changed[..., : max(1, tensor.shape[-1] // self.heads)] = 0
        return changed


def lost_head(subject: Subject, entries: tuple[GoldenEntry, ...]) -> LostHead:
    """Where a head can be taken from: what enters the last projection of the middle attention, else
    what leaves the middle module that has weights.

    Raises:
        CannotInject: no module was recorded.
    """
    modules = dict(subject.model.named_modules())
    events = [event for entry in entries for event in entry.measured.sketches.events]
    known = [event for event in dict.fromkeys(events) if event[0] in modules and event[0]]
    heads = subject.facts.heads or FEW_HEADS
    attentions = [
        inside[-1]
        for name in attention_modules(subject.model)
        if (inside := [event for event in known if _enters(event, name)])
    ]
    weighted = [
        event
        for event in known
        if event[1] == "out" and any(True for _ in modules[event[0]].parameters(recurse=False))
    ]
    chosen = attentions or weighted
    if not chosen:
        raise CannotInject("no module of it was recorded")
    return LostHead(chosen[len(chosen) // 2], heads)


def _enters(event: Event, attention: str) -> bool:
    return event[1] == "in" and event[0].startswith(f"{attention}.")


def control_calls(calls: list[HeldCall]) -> list[HeldCall]:
    """One call of each precision, implementation and compiler that did not differ: the last batch,
    since rounding is largest where most is computed.
    """
    chosen: dict[object, HeldCall] = {}
    for each in calls:
        if each.held not in ("identical", "rounding"):
            continue
        before = chosen.get(each.call.group)
        if before is None or len(each.call.spec.tokens) >= len(before.call.spec.tokens):
            chosen[each.call.group] = each
    return list(chosen.values())


def control(
    view: Subject, entry: GoldenEntry, place: LostHead, vocab: int, buffers: SavedBuffers
) -> Control:
    """The same call with a head lost: did it differ?"""
    with place.injected(view.model):
        now = measured(view, entry.call, vocab, buffers=buffers)
    found = held(entry, now, lambda: entry.rounding, frozenset())
    return Control(
        fault=place.words,
        detected=found.held == "different",
        max_abs=found.largest,
        case=entry.call.name,
    )


def other_token(call: GoldenCall, token: int) -> GoldenCall:
    """The call with another first token in every row: the control where no module is in sight."""
    rows = tuple((token, *row[1:]) for row in call.spec.tokens)
    return replace(call, spec=replace(call.spec, tokens=rows))
