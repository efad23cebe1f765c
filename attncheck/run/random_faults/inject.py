"""Inject a random fault into a model, by hooks at its attention interface, its cache, its modules.

Axes: B batch, H heads, T query positions, S key positions, D head width, W hidden width, V
vocabulary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from attncheck.attention.call import AttentionCall
from attncheck.attention.masks import allowed_BHTS, with_allowed
from attncheck.core.errors import CannotInject
from attncheck.faults.engine.injection import with_positions
from attncheck.run.random_faults.changes import cells_changed, changed
from attncheck.run.random_faults.moment import Moment, followed
from attncheck.run.random_faults.parts import EVERY, RandomFault
from attncheck.run.random_faults.sites import Sites
from attncheck.run.random_faults.stored import at_stored, each_update
from attncheck.run.random_faults.upstream import passed_on


@final
@dataclass(frozen=True)
class Injector:
    """One random fault in one model."""

    sites: Sites
    fault: RandomFault

    @contextlib.contextmanager
    def injected(self) -> Iterator[None]:
        """The model has the fault inside; what runs there is not remembered.

        Raises:
            CannotInject: the model has no place for it.
        """
        subject = self.sites.subject
        with contextlib.ExitStack() as stack:
            moment = Moment()
            stack.enter_context(self._injected(moment))
            stack.enter_context(followed(subject, moment))
            stack.enter_context(subject.passes.under(str(self.fault), on_cache_only=False))
            yield

    def _injected(self, moment: Moment) -> AbstractContextManager[Any]:
        what = self.fault.what
        if what in ("hidden", "logits"):
            return self._at_module(moment)
        if what == "positions":
            return self._at_positions(moment)
        if what == "states" or what.startswith("stored"):
            return at_stored(self.sites, self.fault, moment)
        return self._at_attention(moment)

    def _at_attention(self, moment: Moment) -> AbstractContextManager[Any]:
        subject, fault = self.sites.subject, self.fault
        handler = AttentionHandler(self.sites, fault, moment).handle
        if self.sites.upstream:
            return passed_on(subject.model, handler)
        if fault.what in ("keys", "values", "keys+values") and fault.when in ("cached", "step"):
            return each_update(self.sites, fault, moment)
        return subject.handle_calls(handler)

    def _at_module(self, moment: Moment) -> AbstractContextManager[Any]:
        model = self.sites.subject.model
        module = model if self.fault.what == "logits" else model.get_submodule(self.fault.at)

        def hook(module: nn.Module, args: Any, output: Any) -> Any:
            return self._replaced(output, moment) if moment.is_when(self.fault.when) else output

        return module.register_forward_hook(hook)

    def _replaced(self, output: Any, moment: Moment) -> Any:
        """The output of a module with other states (B, T, W), or other logits (B, T, V)."""
        if isinstance(output, Tensor):
            return self._states(output, moment)
        if isinstance(output, tuple):
            return (self._states(output[0], moment), *output[1:])
        output.logits = self._states(output.logits, moment)
        return output

    def _states(self, states_BTW: Tensor, moment: Moment) -> Tensor:
        positions_T = moment.before + torch.arange(states_BTW.shape[1], device=states_BTW.device)
        return changed(self.fault, states_BTW[:, None], positions_T)[:, 0]

    def _at_positions(self, moment: Moment) -> AbstractContextManager[None]:
        subject, fault = self.sites.subject, self.fault
        first = subject.can.first_position
        placings: dict[str, Callable[[Tensor, int], Tensor]] = {
            "offset": lambda right_T, before: right_T + int(fault.number),
            "restart": lambda right_T, before: right_T - before,
            "frozen": lambda right_T, before: torch.full_like(right_T, before),
        }

        def positions(call: dict[str, Any], before: int, new: int) -> Tensor | None:
            if not moment.is_when(fault.when):
                return None
            right_T = torch.arange(before, before + new)
            begin, end = fault.span
            chosen_T = (right_T >= begin) & (right_T <= (end if end is not None else right_T.max()))
            wrong_T = placings[fault.kind](right_T, before)
            return torch.where(chosen_T, wrong_T, right_T) + first

        return with_positions(subject, positions)


@final
@dataclass(frozen=True)
class AttentionHandler:
    """Changes attention calls, in the modules and the moments that the fault concerns."""

    sites: Sites
    fault: RandomFault
    moment: Moment

    def handle(self, call: AttentionCall) -> Any:
        """The kernel's output for the changed call."""
        name = self._name(call)
        site = next((each for each in self.sites.attention if each.module == name), None)
        if site is None:
            return call.run()
        seen = self._swapped_in(call)
        chosen = self.fault.at in (EVERY, name) and (not site.cross or self.fault.at == name)
        if not chosen or not self.moment.is_when(self.fault.when):
            return call.run()
        if self.fault.what == "cells":
            return self._with_cells(call).run()
        if self.fault.what == "output":
            return self._with_output(call.run())
        return self._with_states(call, seen, name).run()

    def _name(self, call: AttentionCall) -> str:
        return self.sites.names.get(id(call.module), "")

    def _swapped_in(self, call: AttentionCall) -> dict[str, Tensor]:
        """What the layer before passed on; this one's takes its place."""
        seen = dict(self.moment.seen)
        self.moment.seen.update(queries=call.query_BHTD, keys=call.key_BGSD, values=call.value_BGSD)
        return seen

    def _queries_T(self, call: AttentionCall) -> Tensor:
        new, total = call.query_BHTD.shape[2], call.key_BGSD.shape[2]
        before = self.moment.before or (total - new if self._grows(call) else 0)
        return before + torch.arange(new, device=call.query_BHTD.device)

    def _grows(self, call: AttentionCall) -> bool:
        return self.moment.filled and not self.moment.static

    def _keys_S(self, call: AttentionCall) -> Tensor:
        """Positions of the keys: a sliding cache holds the newest, a buffer the first."""
        total = call.key_BGSD.shape[2]
        present = int(self._queries_T(call)[-1]) + 1
        first = max(0, present - total) if self._is_self(call) else 0
        return first + torch.arange(total, device=call.key_BGSD.device)

    def _is_self(self, call: AttentionCall) -> bool:
        name = self._name(call)
        return all(not each.cross for each in self.sites.attention if each.module == name)

    def _with_cells(self, call: AttentionCall) -> AttentionCall:
        allowed = allowed_BHTS(call, CannotInject)
        rows, heads, new = call.query_BHTD.shape[:3]
        allowed_full = allowed.expand(rows, heads, new, call.key_BGSD.shape[2])
        new_BHTS = cells_changed(
            self.fault, allowed_full, self._queries_T(call), self._keys_S(call)
        )
        return with_allowed(call, new_BHTS)

    def _with_output(self, output: Any) -> Any:
        context_BTHD = output[0]
        if context_BTHD.ndim != 4:
            raise CannotInject("the kernel returns no (B, T, H, D) output")
        begin = self.moment.before
        positions_T = begin + torch.arange(context_BTHD.shape[1], device=context_BTHD.device)
        new_BHTD = changed(self.fault, context_BTHD.transpose(1, 2), positions_T)
        return (new_BHTD.transpose(1, 2).contiguous(), *output[1:])

    def _with_states(
        self, call: AttentionCall, seen: dict[str, Tensor], name: str
    ) -> AttentionCall:
        rotary = self.sites.rotary.get(name)
        for what in self.fault.what.split("+"):
            field = {"queries": "query_BHTD", "keys": "key_BGSD", "values": "value_BGSD"}[what]
            positions = self._queries_T(call) if what == "queries" else self._keys_S(call)
            old = getattr(call, field)
            setattr(call, field, changed(self.fault, old, positions, rotary, seen.get(what)))
        return call
