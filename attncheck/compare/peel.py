"""Edit the decoder that was read from a reference until it computes what a port computes.

Where a stage is not settled, every edit of it is tried, and the ones after which more of the port's
values come out are followed, a few at a time, since one fault can hide another.

Axes: B batch, T positions, C channels.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from attncheck.compare.decoder import compute
from attncheck.compare.decoder.spec import DecoderSpec, LayerSpec
from attncheck.compare.edits.catalogue import edits_before, edits_behind, edits_of_layer
from attncheck.compare.edits.edit import ROUNDING_ONLY, Edit
from attncheck.compare.edits.order import SKIPPED, order_edits
from attncheck.compare.edits.sums import sum_edits
from attncheck.compare.edits.weights import known_weights
from attncheck.compare.gaps import OpenStage, StageGap, bridge, gap_of
from attncheck.compare.stage import (
    EMBEDDING,
    HEAD,
    Port,
    Stages,
    StageState,
    applied,
    known,
    useful,
)

WIDTH = 5
"""How many partly explained states are followed at a time."""
DEPTH = 4
"""The most edits of one stage."""
HIDING = 1e-6
"""The slack under which pairs of edits are tried although neither alone brings out more."""
Keys = tuple[tuple[str, str, str], ...]


@final
@dataclass(frozen=True, eq=False)
class StagedEdit:
    """An edit at the stage where it was needed; `place` is the port's module there."""

    edit: Edit
    stage: int
    place: str = ""


@final
@dataclass(frozen=True, eq=False)
class Peeled:
    """The decoder after all edits, the edits, how far its logits are from the port's, the stages
    that no edit settled, and the values of every stage that the port has: (stage, what, module).
    """

    spec: DecoderSpec
    edits: tuple[StagedEdit, ...]
    residual: float
    gaps: tuple[StageGap, ...] = ()
    aligned: tuple[tuple[int, str, str], ...] = ()

    @property
    def reach(self) -> tuple[bool, float]:
        """How far a search came: whether to the end, and its last open stage."""
        last = self.gaps[-1].stage if self.gaps else HEAD
        return self.residual < float("inf"), float("inf") if last == HEAD else last


@final
@dataclass(eq=False)
class Peeler:
    """One search over all stages of a decoder."""

    ids_BT: Tensor
    port: Port
    keys: list[tuple[str, str, str]] = field(default_factory=list)
    foreign: dict[str, Tensor] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)
    reference: DecoderSpec | None = None

    def __post_init__(self) -> None:
        self.stages = Stages(self.ids_BT, self.port)

    def peel(self, spec: DecoderSpec) -> Peeled:
        """Settle stage after stage."""
        self.foreign = self.port.weights.unmatched(known_weights(spec))
        self.reference = spec
        done: list[StagedEdit] = []
        gaps: list[OpenStage] = []
        aligned: list[tuple[int, str, str]] = []
        x: Tensor | None = None
        for stage in (EMBEDDING, *range(len(spec.layers)), HEAD):
            state = self._settle(spec, stage, x)
            aligned += [(stage, what, each.module) for what, each in state.found.items()]
            if state.settled or self.stages.leads_on(state, stage):
                spec, x = state.spec, state.output
                self.held |= set(state.found)
                done += [StagedEdit(each, stage, _place(state, each)) for each in state.edits]
                self.keys += [each.key for each in state.edits if each.key not in self.keys]
                continue
            plain = self.stages.state(spec, stage, x, (), keep=True)
            x = bridge(self.stages, spec, stage, plain)
            gaps.append(OpenStage(stage, plain, x))
            if x is None:
                break
        residual = float("inf") if x is None else self.port.distance(x)
        open_ = tuple(gap_of(each, self.held) for each in gaps)
        return Peeled(spec, tuple(done), residual, open_, tuple(aligned))

    def _settle(self, spec: DecoderSpec, stage: int, x: Tensor | None) -> StageState:
        """The first state that settles a stage, with the fewest edits; else the best one."""
        best = self.stages.state(spec, stage, x, (), keep=True)
        if not best.settled:
            best = self._with_usual(best, stage, x)
        if not best.settled and stage >= 0:
            other = self._of_order(best, stage, x)
            if other is not None:
                return other
        beam, tried = [best], set[Keys]()
        for depth in range(DEPTH):
            if best.settled:
                break
            grown = [each for state in beam for each in self._grown(state, stage, x, tried)]
            grown.sort(key=lambda each: each.rank)
            alone = depth > 0 or self.port.slack != HIDING
            if not grown or (alone and len(grown[0].found) <= len(best.found)):
                break
            best = self._cheapest(grown) if grown[0].settled else min(best, grown[0], key=_rank)
            beam = _distinct(grown)[:WIDTH]
        return best if best.settled or stage < 0 else self._by_what_follows(best, stage, x)

    def _by_what_follows(self, best: StageState, stage: int, x: Tensor | None) -> StageState:
        """The state with another sum where the next stage's values tell it: a sum that leaves its
        residual out is the block's own output, which the port has anyway.
        """
        if self.stages.leads_on(best, stage):
            return best
        for edit in sum_edits(best.spec.layers[stage]):
            for after in self._after(best, edit, stage, x):
                known_values = len(after.found) >= len(best.found)
                if known_values and self.stages.leads_on(after, stage):
                    return after
        return best

    def _of_order(self, state: StageState, stage: int, x: Tensor | None) -> StageState | None:
        """The stage with the layer skipped, or with another one in its place, if that explains what
        the port computes.
        """
        assert x is not None
        layers = (self.reference or state.spec).layers
        for edit in order_edits(layers, stage, lambda each: self._begins(each, x, state)):
            after = self.stages.state(applied(state.spec, stage, edit), stage, x, (edit,))
            if after.settled:
                return after
            if edit.name == SKIPPED and self._is_skipped(state, stage, x):
                return after
        return None

    def _is_skipped(self, state: StageState, stage: int, x: Tensor) -> bool:
        """Whether the next layer follows from a layer's input, and this one does not run later."""
        spec = state.spec
        if not self.stages.follows(spec, stage, x, state.prints):
            return False
        later = spec.layers[stage + 1 : stage + 2]
        return not any(
            self.stages.follows(spec, stage - 1, compute.layer(each, x), state.prints)
            for each in later
        )

    def _begins(self, layer: LayerSpec, x: Tensor, state: StageState) -> bool:
        """Whether the port has the norm that a layer begins with, of x."""
        if layer.before_attention is None or layer.sum_norms:
            return True
        first = compute.normed(layer.before_attention, x)
        return bool(self.port.tape.find(first, self.port.slack)) and not known(first, state.prints)

    def _with_usual(self, state: StageState, stage: int, x: Tensor | None) -> StageState:
        """A state with the edits that other stages needed and those of rounding, as far as they
        bring out more: mostly they are all that there is.
        """
        for _ in range(DEPTH):
            usual = [
                each
                for each in self._edits(state, stage)
                if each.name == ROUNDING_ONLY or each.key in self.keys
            ]
            able = [each for each in usual if useful(each, state)]
            tried = [after for each in able for after in self._after(state, each, stage, x)]
            found = min(tried, key=_rank, default=state)
            if not found.settled and len(found.found) <= len(state.found):
                return state
            state = self.stages.state(found.spec, stage, x, found.edits, keep=True)
            if state.settled:
                return state
        return state

    def _grown(
        self, state: StageState, stage: int, x: Tensor | None, tried: set[Keys]
    ) -> Iterator[StageState]:
        """A state with each useful edit more that was not tried in another order."""
        full = self.stages.state(state.spec, stage, x, state.edits, keep=True)
        for edit in self._edits(full, stage):
            if edit.key in (each.key for each in state.edits) or not useful(edit, full):
                continue
            keys = tuple(sorted(each.key for each in (*state.edits, edit)))
            if len(keys) == 1 or keys not in tried:
                tried.add(keys)
                yield from self._after(full, edit, stage, x)

    def _after(
        self, state: StageState, edit: Edit, stage: int, x: Tensor | None
    ) -> Iterator[StageState]:
        """A state with one edit more; none where shapes forbid it: a norm of all queries does not
        fit fewer keys.
        """
        with contextlib.suppress(RuntimeError):
            spec = applied(state.spec, stage, edit)
            yield self.stages.state(spec, stage, x, (*state.edits, edit), state)

    def _cheapest(self, grown: list[StageState]) -> StageState:
        """The cheapest settled state; edits that were needed before cost less."""
        settled = [each for each in grown if each.settled]
        return min(
            settled,
            key=lambda each: (
                sum(edit.cost for edit in each.edits)
                - 0.5 * sum(edit.key in self.keys for edit in each.edits),
            ),
        )

    def _edits(self, state: StageState, stage: int) -> Iterator[Edit]:
        spec, port = state.spec, self.port
        if stage == EMBEDDING:
            return edits_before(spec, state.output, port.tape, port.slack)
        if stage == HEAD:
            return edits_behind(
                spec, state.nodes, port.logits_BTV, port.tape, port.slack, self.foreign
            )
        reaches = [each.attention.reach for each in (self.reference or spec).layers]
        return edits_of_layer(
            spec, stage, reaches, state.nodes, port.tape, port.slack, port.weights, self.foreign
        )


def _rank(state: StageState) -> tuple[bool, int, int, int]:
    return state.rank


def _distinct(states: list[StageState]) -> list[StageState]:
    """States that differ in what was found or computed: two names of one change are one."""
    kept: list[StageState] = []
    for state in states:
        if not bool(torch.isfinite(state.output).all()):
            continue
        if not any(
            len(state.found) == len(k.found) and torch.allclose(state.output, k.output)
            for k in kept
        ):
            kept.append(state)
        if len(kept) == WIDTH:
            break
    return kept


def _place(state: StageState, edit: Edit) -> str:
    """The port's module that computes the part of an edit."""
    inside = [value for name, value in state.found.items() if name.startswith(edit.part)]
    values = inside or list(state.found.values())
    return values[-1].module if values else ""
