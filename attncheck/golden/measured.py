"""One call as it is recorded: logits at chosen positions, a digest of all of them, sketches of what
every module gave, and how far rounding moves each.

Axes: B batch, T positions, V vocabulary, N chosen positions, C chosen tokens of the vocabulary,
G stretches of T, K numbers kept for each position, E events.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor

from attncheck.attention.rotary_tables import nudged, stored_tables
from attncheck.core.errors import Unsupported
from attncheck.golden.calls import GoldenCall
from attncheck.golden.sketch import GROUPS, Sketches, at_real, norms, sizes, sketches, sketches_of
from attncheck.model.compiling import compiled, why_not_compiled
from attncheck.model.forward_spec import Mask2D
from attncheck.model.generation import greedy
from attncheck.model.inputs import Row
from attncheck.model.subject import Subject
from attncheck.model.weights import SavedBuffers
from attncheck.numerics.divergence import max_abs
from attncheck.numerics.module_outputs import Event, Recorder, recording
from attncheck.numerics.reorder import Reorder

LOGITS: Event = ("", "out")
COLUMNS = 64
"""Tokens of the vocabulary whose logits are kept."""
POSITIONS = 12
SHARES = (0.5, 0.3)
Place = tuple[int, int]
"""(row of the batch, position)."""


@final
@dataclass(frozen=True, kw_only=True)
class MeasuredCall:
    """What a call gave: `logits_NC` at `places`, their largest token, a `digest` of every logit at
    a real token, how many of those are not finite, sketches, and the tokens that generate() chose.
    """

    places: tuple[Place, ...]
    logits_NC: Tensor
    best_N: Tensor
    digest: str
    lost: int
    sketches: Sketches
    tokens: Row = ()


@final
@dataclass(frozen=True)
class Rounding:
    """How far another order of summation moves the chosen logits, at most, and each sketch: norms
    (E, G) of the events.
    """

    largest: float
    events: tuple[Event, ...]
    norms_EG: Tensor


def columns(vocab: int) -> Tensor:
    """The tokens whose logits are kept: all of a small vocabulary, otherwise evenly spread ones."""
    kept = min(vocab, COLUMNS)
    return torch.arange(kept) * vocab // kept


def measured(
    subject: Subject,
    call: GoldenCall,
    vocab: int,
    rounded: AbstractContextManager[object] | None = None,
    buffers: SavedBuffers | None = None,
) -> MeasuredCall:
    """Run a call once, from the same `buffers` and random numbers each time.

    Raises:
        Unsupported: the model does not take the call, or breaks on it.
    """
    if buffers is not None:
        buffers.put_back()
    if call.spec.positions is not None:
        subject.can.first_position  # noqa: B018 - found out by forwards that no hook may see
    modules = {name: module for name, module in subject.model.named_modules() if name}
    with (
        torch.random.fork_rng(),
        recording({} if call.backend else modules) as recorder,
        rounded or contextlib.nullcontext(),
    ):
        torch.manual_seed(0)
        logits_BTV, tokens = _run(subject, call)
    return _kept(call, logits_BTV[..., :vocab].cpu(), tokens, recorder)


def _run(subject: Subject, call: GoldenCall) -> tuple[Tensor, Row]:
    if call.new_tokens:
        answer = greedy(subject, call.spec.tokens[0], call.new_tokens, call.padding)
        return answer.logits_BNV, answer.tokens
    passes, spec = subject.passes, call.spec
    context = contextlib.nullcontext() if spec.unpromoted else passes.context()
    with torch.no_grad(), context, passes.switch(spec.attn), _compiler(subject, call):
        return passes.run(spec), ()


@contextlib.contextmanager
def _compiler(subject: Subject, call: GoldenCall) -> Iterator[None]:
    if not call.backend:
        yield
        return
    reason = why_not_compiled(call.backend, subject.device)
    if reason is not None:
        raise NotHere(reason)
    with compiled(subject.model, call.backend):
        yield


class NotHere(Unsupported):
    """What the call needs is not on this machine: no word about the model."""


def _kept(call: GoldenCall, logits_BTV: Tensor, tokens: Row, recorder: Recorder) -> MeasuredCall:
    shape = (logits_BTV.shape[0], logits_BTV.shape[1])
    real_BT = torch.ones(shape, dtype=torch.bool)
    inside_BT = real_BT
    if isinstance(call.spec.mask, Mask2D):
        real_BT = inside_BT = torch.tensor(call.spec.mask.rows, dtype=torch.bool)
    if call.new_tokens:
        length = len(call.spec.tokens[0]) + call.padding + call.new_tokens - 1
        inside_BT = torch.ones(1, length, dtype=torch.bool)
        inside_BT[:, : call.padding] = False
    found = sketches(recorder.outputs((inside_BT.shape[0], inside_BT.shape[1])), inside_BT)
    places = _places(call, real_BT)
    rows, at = zip(*places, strict=True)
    chosen_NV = logits_BTV[list(rows), list(at)]
    kept_NC = chosen_NV[:, columns(logits_BTV.shape[2])].double()
    real_NV = logits_BTV[real_BT]
    return MeasuredCall(
        places=places,
        logits_NC=kept_NC,
        best_N=chosen_NV.argmax(-1),
        digest=_digest(real_NV),
        lost=int(real_NV.numel() - torch.isfinite(real_NV).sum()),
        sketches=found.joined(_whole(logits_BTV, real_BT)),
        tokens=tokens,
    )


def _whole(logits_BTV: Tensor, real_BT: Tensor) -> Sketches:
    """The sketch of all logits at real tokens."""
    recorder = Recorder()
    recorder.note(LOGITS, logits_BTV)
    return sketches_of({LOGITS: at_real(recorder.prints[LOGITS][0], real_BT)})


def _digest(values: Tensor) -> str:
    data = values.contiguous().view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(data).hexdigest()[:16]


def _places(call: GoldenCall, real_BT: Tensor) -> tuple[Place, ...]:
    """The first, the middle and the last real token of each row, and those beside cuts."""
    found: dict[Place, None] = {}
    for row in range(real_BT.shape[0]):
        at = real_BT[row].nonzero().flatten().tolist()
        for position in (at[-1], at[0], at[len(at) // 2], at[len(at) * 3 // 4]):
            found[row, position] = None
    for cut in call.spec.cuts[::-1]:
        for place in (cut, cut - 1):
            if place < real_BT.shape[1] and bool(real_BT[0, place]):
                found[0, place] = None
    return tuple(sorted(list(found)[:POSITIONS]))


def rounding(
    subject: Subject,
    call: GoldenCall,
    usual: MeasuredCall,
    vocab: int,
    buffers: SavedBuffers | None = None,
) -> Rounding:
    """How far rounding alone moves what a call gives: the largest of several samples.

    Raises:
        Unsupported: the model does not take the call again.
    """
    wanted = usual.sketches.events
    if call.backend:  # compiled code is not recorded by module, and may be what is wrong
        call = replace(call, backend="")
        usual = measured(subject, call, vocab, buffers=buffers)
    events, largest = usual.sketches.events, 0.0
    norms_EG = torch.zeros(len(events), GROUPS, dtype=torch.float64)
    for rounded in _samples(subject, call):
        moved = measured(subject, call, vocab, rounded(), buffers)
        norms_EG = torch.maximum(norms_EG, _moved(usual.sketches, moved.sketches))
        if moved.logits_NC.shape == usual.logits_NC.shape:
            delta_NC = (moved.logits_NC - usual.logits_NC).nan_to_num(0.0)
            largest = max(largest, max_abs(delta_NC))
    kept = [number for number, event in enumerate(events) if event in wanted]
    return Rounding(largest, wanted, norms_EG[kept])


def _moved(usual: Sketches, moved: Sketches) -> Tensor:
    """The norm (E, G) of how far each event moved; 0 where it is not in both."""
    found = []
    for event, print_BTK in usual.prints.items():
        other_BTK = moved.prints.get(event, print_BTK)
        same = other_BTK.shape == print_BTK.shape
        delta_BTK = other_BTK - print_BTK if same else torch.zeros_like(print_BTK)
        found.append(norms(delta_BTK.nan_to_num(0.0)))
    return torch.stack(found)


def _samples(
    subject: Subject, call: GoldenCall
) -> Iterator[Callable[[], AbstractContextManager[Any]]]:
    """Other orders of summation, and stored tables of another rounding where there are any."""
    yield lambda: Reorder(SHARES[0])
    if call.dtype == "float64":  # where a lucky order would make the budget too small
        yield lambda: Reorder(SHARES[1])
        if stored_tables(subject.model):
            yield lambda: nudged(subject.model)


def distances(left: Sketches, right: Sketches) -> Tensor:
    """The norm (E, G) of the difference of each event of `left`; 0 where `right` lacks it or where
    both are not finite.
    """
    found = [right.at(event) for event in left.events]
    pairs = zip(left.values_EGK, found, strict=True)
    deltas = [one if other is None else one - other for one, other in pairs]
    lacking_E = torch.tensor([each is None for each in found])
    delta_EGK = torch.stack(deltas).nan_to_num(0.0, math.inf, math.inf)
    return sizes(delta_EGK.masked_fill(lacking_E[:, None, None], 0.0))
