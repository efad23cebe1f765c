"""A stage of a port that no edit explains, and the search beyond it.

The port's own output of the stage is what leads on to the next one. It is put in, so that every
other stage is still compared, and equal logits at the end prove that nothing else differs.

Axes: B batch, T positions, C channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from attncheck.compare.decoder.spec import DecoderSpec
from attncheck.compare.flow import fingerprint
from attncheck.compare.stage import EMBEDDING, HEAD, Stages, StageState

WORDS = {
    "query with_norm": "queries after their norm",
    "key with_norm": "keys after their norm",
    "query with_rotation": "queries after the rotation",
    "key with_rotation": "keys after the rotation",
    "raw scores": "scores",
    "weights": "attention weights",
    "context": "weighted values",
    "inner": "inner state",
    "router weights": "weights of the chosen experts",
}


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class StageGap:
    """A stage that no edit explains: the first `part` of it that the port has otherwise, the
    `module` of the reference and the `place` in the port, and by what part of its size the stage's
    output differs, from which position on; both None where the port's output was not found.
    """

    stage: int
    part: str
    module: str
    place: str
    share: float | None = None
    position: int | None = None

    @property
    def bridged(self) -> bool:
        """Whether the search went on behind this stage."""
        return self.share is not None


@final
@dataclass(frozen=True, eq=False)
class OpenStage:
    """A stage that no edit settled, without edits, and the port's own output of it if found."""

    stage: int
    state: StageState
    theirs: Tensor | None


def gap_of(open_: OpenStage, held: set[str]) -> StageGap:
    """The gap at a stage; `held` are the values that the port has in other stages."""
    state, theirs = open_.state, open_.theirs
    part, place = _first_otherwise(state, held)
    share = position = None
    if theirs is not None:
        apart_T = (theirs - state.output).abs().amax((0, 2))
        share = float((theirs - state.output).norm() / state.output.norm())
        position = int((apart_T > 1e-6 * float(state.output.abs().max())).long().argmax())
    return StageGap(
        stage=open_.stage,
        part=part,
        module=_module(state.spec, open_.stage, part),
        place=place,
        share=share,
        position=position,
    )


def _first_otherwise(state: StageState, held: set[str]) -> tuple[str, str]:
    """The first value of a stage that the port has otherwise, and the port's module before it.
    A value that it holds in no other stage may be one that it never computes; one that is the same
    as the value before it says nothing.
    """
    names = [each for each in state.nodes if each != "input"]
    found = [number for number, name in enumerate(names) if name in state.found]
    last = found[-1] if found else -1
    place = state.found[names[last]].module if found else ""
    missing = [
        name
        for before, name in zip(names[last:], names[last + 1 :], strict=False)
        if last < 0 or not torch.equal(state.prints[name], state.prints[before])
    ]
    telling = [name for name in missing if name in held]
    return (telling or missing or names[-1:])[0], place


def _module(spec: DecoderSpec, stage: int, part: str) -> str:
    if stage < 0:
        return spec.embedding_module if stage == EMBEDDING else spec.head.module
    layer = spec.layers[stage]
    parts = {"attention": layer.attention.module, "mlp": layer.mlp.module}
    return parts.get(part.partition(" ")[0], layer.module)


def words_of(part: str) -> str:
    """A value of a decoder in words."""
    block, _, inner = part.partition(" ")
    if block not in ("attention", "mlp"):
        return part
    name = {"attention": "attention", "mlp": "feed-forward block"}[block]
    return f"{name}, {WORDS.get(inner, inner)}"


def bridge(stages: Stages, spec: DecoderSpec, stage: int, state: StageState) -> Tensor | None:
    """The port's own output of a stage, from which the next stage's values follow."""
    if stage == HEAD:
        return None
    starts = stages.port.tape.find(state.nodes.get("input", state.output), stages.port.slack)
    seen: list[Tensor] = []
    for value in stages.port.tape.after(starts[0].place if starts else 0, state.output.numel()):
        assert value.kept is not None
        if value.kept.shape[-1] != state.output.shape[-1]:
            continue
        batch, length = state.output.shape[:2]
        first = batch > 1 and value.kept.shape[:2] == (length, batch)  # positions before rows
        kept = value.kept.transpose(0, 1) if first else value.kept
        output = kept.reshape(state.output.shape)
        if not bool(output.any()):
            continue  # zeros lead on to zeros
        print_ = fingerprint(output)
        if any(torch.allclose(print_, each, 1e-9, 0) for each in seen):
            continue
        seen.append(print_)
        if stages.follows(spec, stage, output, state.prints):
            return output
    return None
