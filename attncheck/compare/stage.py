"""One stage of a decoder under some edits: its values, and which of them flow through the port.

The stages are the embedding, each layer, and the head. A stage is settled when its output flows
through the port, or the next stage's values do.

Axes: B batch, T positions, C channels, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from attncheck.compare.decoder import compute
from attncheck.compare.decoder.spec import DecoderSpec
from attncheck.compare.edits.edit import Edit
from attncheck.compare.edits.port_weights import PortWeights, weights_of
from attncheck.compare.flow import FlowTape, Value, fingerprint

ENOUGH = 2
"""How many values of the next stage have to be found where a stage's output is not kept."""
EMBEDDING, HEAD = -1, -2
NOTHING = torch.zeros(0)


@final
@dataclass(frozen=True, eq=False)
class Port:
    """What is known of the other model: its values, its logits and its matrices."""

    tape: FlowTape
    logits_BTV: Tensor
    weights: PortWeights
    slack: float

    def same_logits(self, logits_BTV: Tensor) -> bool:
        """Whether logits are the port's, on the vocabulary that both have."""
        return self.distance(logits_BTV) <= self.slack * float(self.logits_BTV.abs().max())

    def distance(self, logits_BTV: Tensor) -> float:
        """The largest difference from the port's logits."""
        both = min(logits_BTV.shape[-1], self.logits_BTV.shape[-1])
        found = (logits_BTV[..., :both] - self.logits_BTV[..., :both]).abs().max()
        return float(found) if bool(torch.isfinite(found)) else float("inf")


@final
@dataclass(frozen=True, eq=False)
class StageState:
    """A stage under some edits: its values, which of them the port has, and its output."""

    spec: DecoderSpec
    edits: tuple[Edit, ...]
    nodes: dict[str, Tensor]
    found: dict[str, Value]
    output: Tensor
    settled: bool
    prints: dict[str, Tensor]

    @property
    def rank(self) -> tuple[bool, int, int, int]:
        """Settled first, then by values found; cheaper and fewer edits first."""
        cost = sum(each.cost for each in self.edits)
        return not self.settled, -len(self.found), len(self.edits), cost


@final
@dataclass(frozen=True, eq=False)
class Stages:
    """Computes stages of decoders on one input, and looks for their values in a port."""

    ids_BT: Tensor
    port: Port

    def state(
        self,
        spec: DecoderSpec,
        stage: int,
        x: Tensor | None,
        edits: tuple[Edit, ...],
        before: StageState | None = None,
        keep: bool = False,
    ) -> StageState:
        """A stage under some edits; values that are those of `before` are not looked for again."""
        nodes: dict[str, Tensor] = {}
        found: dict[str, Value] = {}
        prints: dict[str, Tensor] = {}
        output = run_stage(spec, stage, self.ids_BT, x, nodes.__setitem__)
        seen: list[Tensor] = [] if x is None else [fingerprint(x)]
        for name, value in nodes.items():
            if before is not None and same_tensor(before.nodes.get(name), value):
                if name in before.found:
                    found[name] = before.found[name]
                seen.append(before.prints[name])
                prints[name] = before.prints[name]
                continue
            places = self.port.tape.find(value, self.port.slack)
            print_ = prints[name] = fingerprint(value)
            # a value that came up before proves nothing: a missing norm gives its own input
            if places and not any(torch.allclose(print_, each, 1e-9, 0) for each in seen):
                found[name] = places[0]
            seen.append(print_)
        settled = self._is_settled(spec, stage, output, found)
        kept = nodes if keep else dict.fromkeys(nodes, NOTHING)
        return StageState(spec, edits, kept, found, output, settled, prints)

    def _is_settled(
        self, spec: DecoderSpec, stage: int, output: Tensor, found: dict[str, Value]
    ) -> bool:
        if not bool(torch.isfinite(output).all()):
            return False
        if stage == HEAD:
            return self.port.same_logits(output)
        return ("embedded" if stage == EMBEDDING else "layer output") in found

    def leads_on(self, state: StageState, stage: int) -> bool:
        """Whether the next stage's values flow through the port, although this one's output is
        nowhere kept. It may be another multiple of what it should be, which a norm hides.
        """
        if stage == HEAD:
            return False
        hits = self._hits(state.spec, stage, state.output)
        return len(hits) >= (1 if following(state.spec, stage) == HEAD else ENOUGH)

    def follows(
        self, spec: DecoderSpec, stage: int, output: Tensor, prints: dict[str, Tensor]
    ) -> bool:
        """Whether the next stage's values follow from an output of this one that the port holds;
        values whose fingerprints are among `prints` prove nothing.
        """
        hits = self._hits(spec, stage, output)
        new = [n for n, value in hits.items() if n != "input" and not known(value, prints)]
        return len(new) >= (1 if following(spec, stage) == HEAD else ENOUGH)

    def _hits(self, spec: DecoderSpec, stage: int, output: Tensor) -> dict[str, Tensor]:
        """The next stage's values that the port has, where this stage gives an output."""
        nodes: dict[str, Tensor] = {}
        run_stage(spec, following(spec, stage), self.ids_BT, output, nodes.__setitem__)
        tape, slack = self.port.tape, self.port.slack
        return {name: value for name, value in nodes.items() if tape.find(value, slack)}


def known(value: Tensor, prints: dict[str, Tensor]) -> bool:
    """Whether a value is among some by its fingerprint."""
    print_ = fingerprint(value)
    return any(torch.allclose(print_, each, 1e-9, 0) for each in prints.values())


def following(spec: DecoderSpec, stage: int) -> int:
    """The stage after one."""
    return stage + 1 if stage + 1 < len(spec.layers) else HEAD


def applied(spec: DecoderSpec, stage: int, edit: Edit) -> DecoderSpec:
    """A decoder with an edit of one stage."""
    if edit.on_decoder is not None:
        return edit.on_decoder(spec)
    assert edit.on_layer is not None
    return compute.with_layer(spec, stage, edit.on_layer(spec.layers[stage]))


def run_stage(
    spec: DecoderSpec,
    stage: int,
    ids_BT: Tensor,
    x: Tensor | None,
    visit: Callable[[str, Tensor], None],
) -> Tensor:
    """The output of one stage on its input."""
    if stage == EMBEDDING:
        return compute.embedded(spec, ids_BT, visit)
    assert x is not None
    if stage == HEAD:
        return compute.head(spec, x, visit)
    return compute.layer(spec.layers[stage], x, visit)


def useful(edit: Edit, state: StageState) -> bool:
    """Whether an edit may bring out more: not where its part comes out already, nor in a
    feed-forward block whose input is not yet right.
    """
    found = state.found
    if not any(name.startswith(("attention", "mlp", "middle", "before")) for name in found):
        return True
    if edit.part == "attention":
        return "attention output" not in found
    if edit.part == "mlp":
        begun = any(name in found for name in ("attention output", "middle", "before mlp"))
        return "mlp output" not in found and begun
    return True


def same_tensor(left: Tensor | None, right: Tensor) -> bool:
    """Whether two tensors are the same to the last bit."""
    return left is not None and left.shape == right.shape and torch.equal(left, right)


def port_of(model: nn.Module, tape: FlowTape, logits_BTV: Tensor, slack: float) -> Port:
    """The port as the search needs it."""
    return Port(tape, logits_BTV.cpu().double(), weights_of(model), slack)
