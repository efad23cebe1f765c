"""The trusted path with the deviations of a failing forward put on it, layer by layer.

Each layer computes from hidden states that already carry the deviations before it. So what the
failing forward has there must be equal, and whatever differs is made in this layer.

Axes: B batch, H query heads, G key/value heads, T positions, D head width, V vocabulary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeGuard, final

import torch
from torch import Tensor, nn

from attncheck.attention.call import AttentionCall
from attncheck.attention.masks import allowed_BHTS
from attncheck.attention.reference import params_of
from attncheck.core.errors import Unsupported
from attncheck.faults.engine.trusted import Trusted, attend_widely
from attncheck.model.embeddings import token_table
from attncheck.model.forward_spec import ForwardSpec, Mask2D
from attncheck.numerics.first_divergence import first_divergence
from attncheck.numerics.module_outputs import Event, ModuleOutputs
from attncheck.observation.calls import RightLayer, explained_call
from attncheck.observation.deviation import Deviation
from attncheck.observation.hidden import (
    ChangedOutput,
    Run,
    changed_output,
    looked_up,
    prints_of,
    states_at,
    without_bias,
)
from attncheck.observation.ledger import Ledger, LedgerCall
from attncheck.observation.rescaled import rescaled
from attncheck.observation.rotation import PositionRotation, measured_rotations
from attncheck.observation.sequence import Sequence

LOGITS: Event = ("", "out")
"""The event in which the model returns its logits."""


@final
@dataclass
class Explaining:
    """The deviations that a ledger shows, collected while the trusted path runs with them.

    `relative` is the difference that rounding explains, as a share of the largest value. Where the
    failing forward `recorded` is a batch, `part` is the sequence of it that `spec` has alone.
    """

    trusted: Trusted
    spec: ForwardSpec
    ledger: Ledger
    relative: float
    part: Sequence | None = None
    recorded: ForwardSpec | None = None
    changed: list[ChangedOutput] = field(default_factory=list)
    deviations: list[Deviation] = field(default_factory=list)
    attended: dict[int, str] = field(default_factory=dict)
    opaque: bool = False
    measuring: bool = False
    prints: ModuleOutputs = field(default_factory=dict)
    heads: dict[str, int] = field(default_factory=dict)
    rights: dict[str, RightLayer] = field(default_factory=dict)

    def logits(self) -> Tensor:
        """logits_BTV of the trusted path with every deviation on it."""
        self.deviations = [each for changed in self.changed for each in changed.deviations]
        self.opaque = any(changed.opaque for changed in self.changed)
        self.attended = {}
        model = self.trusted.subject.model
        if self.ledger.calls and not self.trusted.subject.can.kernel:
            _ = self._rotations  # no call can be recorded while an inline one is handled
        with torch.no_grad(), contextlib.ExitStack() as stack:
            for changed in self.changed:
                stack.enter_context(changed.replacing(model))
            stack.enter_context(self._attending())
            return self.trusted.plain_logits(self.spec)

    def explain_module(self, run: Run) -> bool:
        """Explain the first module that still differs from the failing forward, which `run` runs
        again; False where there is none.
        """
        model, spec = self.trusted.subject.model, self.spec
        shape = (len(spec.tokens), spec.length)
        self.prints = self.prints or self._failing_prints(run)
        good = prints_of(model, self.logits, shape)
        found = first_divergence(good, self.prints, real_BT=self.real_BT)
        if found is None or any(found.event == changed.event for changed in self.changed):
            return False
        right = states_at(model, found.event, self.logits, shape)
        observed = states_at(model, found.event, run, self._recorded)
        if right is None or observed is None:
            return False
        observed = observed if self.part is None else self.part.states(observed)
        changed = self._changed(found.event, (observed, right))
        if changed is None or not changed.deviations:
            return False
        self.changed.append(changed)
        return True

    def changed_logits(self, run: Run, right_BTV: Tensor) -> ChangedOutput | None:
        """What was done to the logits themselves; None where the model returns others in number."""
        observed_BTV = states_at(self.trusted.subject.model, LOGITS, run, self._recorded)
        if observed_BTV is None:
            return None
        observed_BTV = observed_BTV if self.part is None else self.part.states(observed_BTV)
        states = observed_BTV, right_BTV
        return changed_output(LOGITS, "logits", states, self.spec, self.real_BT, self.relative)

    def _changed(self, event: Event, states: tuple[Tensor, Tensor]) -> ChangedOutput | None:
        """What was done to the states of an event: to each head by itself, if that is what explains
        those that leave attention.
        """
        spec, real_BT, relative = self.spec, self.real_BT, self.relative
        whole = changed_output(event, "hidden", states, spec, real_BT, relative)
        heads = self.heads.get(event[0].rpartition(".")[0], 1)
        table = self.trusted.subject.model.get_submodule(event[0])
        if whole is not None and whole.opaque and self._is_of_positions(table):
            return looked_up(event, table, states, spec, real_BT, relative) or whole
        if whole is not None and whole.opaque and event[1] == "out":
            return without_bias(event, table, states, spec, real_BT, relative) or whole
        if whole is None or not whole.opaque or heads == 1:
            return whole
        if states[0].flatten(2).shape[-1] % heads:
            return whole
        split = changed_output(event, "context", states, spec, real_BT, relative, heads)
        if split is not None and not split.opaque:
            return split
        return self._rescaled(event, whole, states) or whole

    def _is_of_positions(self, table: nn.Module) -> TypeGuard[nn.Embedding]:
        own = token_table(self.trusted.subject.model)
        return isinstance(table, nn.Embedding) and table is not own

    def _rescaled(
        self, event: Event, whole: ChangedOutput, states: tuple[Tensor, Tensor]
    ) -> ChangedOutput | None:
        """The same outputs as those of another scale of the scores, if they are."""
        right = self.rights.get(event[0].rpartition(".")[0])
        found = right and rescaled(right, *(each.flatten(2) for each in states))
        if not right or not found:
            return None
        factor, states_BTW = found
        scaled = {
            (each.start, each.when): Deviation(
                what="scores",
                how="scaled",
                layer=right.layer,
                start=each.start,
                when=each.when,
                amount=factor,
            )
            for each in whole.deviations
        }
        return ChangedOutput(event, states_BTW.reshape(states[1].shape), (*scaled.values(),), False)

    def _failing_prints(self, run: Run) -> ModuleOutputs:
        """The fingerprints of the failing forward, of its part only."""
        prints = prints_of(self.trusted.subject.model, run, self._recorded)
        return prints if self.part is None else self.part.prints(prints)

    @property
    def _recorded(self) -> tuple[int, int]:
        """(B, T) of the failing forward."""
        spec = self.recorded or self.spec
        return len(spec.tokens), spec.length

    @contextlib.contextmanager
    def _attending(self) -> Iterator[None]:
        if self.trusted.out_of_reach is not None:
            yield
            return
        with self.trusted.subject.handle_calls(self._handle):
            yield

    def _handle(self, call: AttentionCall) -> Any:
        # forwards that measure rotations run inside this one
        if self.measuring or call.caveat or call.query_BHTD.shape[2] != self.spec.length:
            return call.run()
        right, output = self._right(call)
        if right is None:
            return output
        name = self.ledger.names.get(id(call.module), "")
        self.attended.setdefault(right.layer, name)
        self.heads[name] = call.query_BHTD.shape[1]
        self.rights[name] = right
        entries = self._entries(call.module)
        if not entries:
            return output
        return torch.cat([self._explained(right, entry) for entry in entries], 1), None

    def _entries(self, module: nn.Module) -> list[LedgerCall]:
        """The failing forward's calls of a module, those of its part only."""
        entries = self.ledger.of(module, (self.recorded or self.spec).length)
        return entries if self.part is None else self.part.calls(entries)

    def _explained(self, right: RightLayer, entry: LedgerCall) -> Tensor:
        found = explained_call(right, entry)
        self.deviations += found.deviations
        self.opaque |= found.opaque
        return found.context_BTHD

    def _right(self, call: AttentionCall) -> tuple[RightLayer | None, Any]:
        """What this layer should compute, and the kernel's output that says so."""
        trusted, spec = self.trusted, self.spec
        square = call.key_BGSD.shape[2] == spec.length
        if call.is_self_attention or (square and not trusted.subject.can.decodes):
            allowed = trusted.expected(call, spec)
            params = params_of(call, allowed)
            output: Any = (
                attend_widely(call.query_BHTD, call.key_BGSD, call.value_BGSD, params),
                None,
            )
        else:
            output = call.run()
            try:
                allowed = allowed_BHTS(call)
            except Unsupported:
                return None, output
            params = params_of(call, allowed)
        layer = trusted.layer(call)
        right = RightLayer(
            layer=layer,
            query_BHTD=call.query_BHTD,
            key_BGTD=call.key_BGSD,
            value_BGTD=call.value_BGSD,
            context_BTHD=output[0],
            params=params,
            real_BT=self.real_BT,
            relative=self.relative,
            rotation=lambda: self._rotations.get(id(call.module)),
            others=lambda which: self._others(which, call),
        )
        return right, output

    @cached_property
    def real_BT(self) -> Tensor | None:
        """(B, T) booleans of the tokens that are no padding; None where all are real."""
        mask = self.spec.mask
        return torch.tensor(mask.rows, dtype=torch.bool) if isinstance(mask, Mask2D) else None

    @cached_property
    def _rotations(self) -> dict[int, PositionRotation]:
        self.measuring = True
        try:
            return measured_rotations(self.trusted, self.spec)
        finally:
            self.measuring = False

    def _others(self, which: int, call: AttentionCall) -> dict[int, Tensor]:
        """Keys (0), values (1) or queries (2) that the failing forward computed for each token in
        the layers beside this one: of new tokens, or of the encoder that this call reads.
        """
        found: dict[int, Tensor] = {}
        for entries in self.ledger.calls.values():
            if not entries or entries[0].call.is_self_attention != call.is_self_attention:
                continue
            number, ours = (
                self.trusted.layer(entries[0].call),
                self._entries(entries[0].call.module),
            )
            if number != self.trusted.layer(call) and ours:
                found.setdefault(number, _computed(which, ours))
        return found


def _computed(which: int, entries: list[LedgerCall]) -> Tensor:
    calls = [each.call for each in entries]
    if which == 2:
        return torch.cat([each.query_BHTD for each in calls], 2)
    states = [(each.key_BGSD, each.value_BGSD)[which] for each in calls]
    if not entries[0].call.is_self_attention:
        return states[0]
    new, least = (each.query_BHTD.shape[2] for each in calls), min(len(each[0]) for each in states)
    # one way to call a layer may repeat heads that another one shares
    kept = (each[:, :: len(each[0]) // least] for each in states)
    return torch.cat([each[:, :, -count:] for each, count in zip(kept, new, strict=True)], 2)
