"""One recorded call against what the same call gives now: identical, rounding, or different and
where.

Rounding is measured on both sides, at every module. In a lower precision a module counts that
agrees in the highest one, so that what is wrong in bfloat16 only is not lost in its noise; modules
that are cut differently agree nowhere and count nowhere.

Axes: E events, N chosen positions, C chosen tokens of the vocabulary, G stretches of T.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

from attncheck.attention.layers import is_list_member, layer_number
from attncheck.core.divergence import excess
from attncheck.diagnosis.locate import attention_home
from attncheck.golden.calls import GoldenCall
from attncheck.golden.file import GoldenEntry
from attncheck.golden.measured import LOGITS, MeasuredCall, Rounding, distances
from attncheck.golden.sketch import GROUPS, sizes, stretches
from attncheck.model.precision import DTYPES
from attncheck.numerics.budget import HEADROOM
from attncheck.numerics.divergence import max_abs
from attncheck.numerics.module_outputs import Event

Held = Literal["identical", "rounding", "different", "skipped"]
LEAST = 0.25
"""Rounding of a result alone, as a share of its precision's eps: a module may have no sum inside
that another order could show.
"""


@final
@dataclass(frozen=True, kw_only=True)
class DivergedModule:
    """The first module that differs: by how much of its size, and from which stretch of T on."""

    module: str
    share: float
    explained: float
    positions: tuple[int, int]

    @property
    def layer(self) -> int | None:
        """The number of the layer, where the module belongs to one."""
        return layer_number(self.module)


@final
@dataclass(frozen=True, kw_only=True)
class HeldCall:
    """What became of one call. `times` is the largest difference as a multiple of what rounding
    explains, `largest` that of the logits at `chosen` positions, `apart` the modules beyond
    rounding.
    """

    call: GoldenCall
    held: Held
    times: float = 0.0
    largest: float = 0.0
    flips: int = 0
    chosen: int = 0
    apart: frozenset[Event] = frozenset()
    first: DivergedModule | None = None
    place: tuple[int, int] | None = None
    note: str = ""


def held(
    entry: GoldenEntry,
    now: MeasuredCall,
    rounds: Callable[[], Rounding],
    cut: frozenset[Event] | None = None,
) -> HeldCall:
    """The verdict on one call. `rounds` measures the rounding of this side where it is needed;
    `cut` are modules that do not count although this precision is lower, None in the highest.
    """
    call, before = entry.call, entry.measured
    if now.logits_NC.shape != before.logits_NC.shape:
        shapes = f"{tuple(now.logits_NC.shape)} where {tuple(before.logits_NC.shape)} was recorded"
        return HeldCall(call=call, held="different", times=math.inf, note=f"logits of {shapes}")
    if now.lost != before.lost:
        note = f"{now.lost} logits are not finite where {before.lost} were"
        return HeldCall(call=call, held="different", times=math.inf, note=note)
    times_E = _times(entry, now, None)
    logits = _logits_times(entry, now, None)
    if max(logits, float(times_E.max())) > 1.0:
        rounding = rounds()
        times_E, logits = _times(entry, now, rounding), _logits_times(entry, now, rounding)
    return _told(entry, now, times_E, logits, cut)


def _told(
    entry: GoldenEntry,
    now: MeasuredCall,
    times_E: Tensor,
    logits: float,
    cut: frozenset[Event] | None,
) -> HeldCall:
    before, events = entry.measured, entry.measured.sketches.events
    inside = {event: float(each) for event, each in zip(events, times_E, strict=True)}
    apart = frozenset(event for event, each in inside.items() if each > 1.0)
    worst = max(logits, inside[LOGITS])
    counted = apart - {LOGITS} - cut if cut is not None else frozenset()
    worst = max([worst, *(inside[event] for event in counted)])
    differs = worst > 1.0 or before.tokens != now.tokens
    same = before.digest == now.digest and not counted
    delta_NC = (now.logits_NC - before.logits_NC).nan_to_num(0.0).abs()
    return HeldCall(
        call=entry.call,
        held="identical" if same else "different" if differs else "rounding",
        times=worst,
        largest=max_abs(delta_NC),
        flips=int((before.best_N != now.best_N).sum()),
        chosen=len(before.places),
        apart=apart,
        first=_first(entry, now, times_E, apart, counted) if differs else None,
        place=_place(before, delta_NC) if differs else None,
        note=_tokens_note(before, now),
    )


def _tokens_note(before: MeasuredCall, now: MeasuredCall) -> str:
    if before.tokens == now.tokens:
        return ""
    pairs = zip(before.tokens, now.tokens, strict=False)
    first = next((n for n, (one, other) in enumerate(pairs) if one != other), 0)
    return f"generate() gives other tokens from number {first + 1} on"


def _eps(call: GoldenCall) -> float:
    return float(torch.finfo(DTYPES[call.dtype]).eps)


def _times(entry: GoldenEntry, now: MeasuredCall, rounding: Rounding | None) -> Tensor:
    """The difference of each event (E), where it is largest along T, as a multiple of what rounding
    of both sides explains; of the recorded side alone where `rounding` is not measured yet.
    """
    before = entry.measured.sketches
    explained_EG = entry.rounding.norms_EG
    if rounding is not None:
        known = dict(zip(rounding.events, rounding.norms_EG, strict=True))
        nothing_G = torch.zeros(GROUPS, dtype=torch.float64)
        own = [known.get(event, nothing_G) for event in before.events]
        explained_EG = explained_EG + torch.stack(own)
    least_EG = LEAST * _eps(entry.call) * before.norms_EG
    limit_EG = (HEADROOM * (explained_EG + least_EG)).nan_to_num(math.inf)
    apart_EG = distances(before, now.sketches)
    return torch.where(apart_EG > 0, apart_EG / limit_EG.clamp_min(1e-300), 0.0).amax(-1)


def _logits_times(entry: GoldenEntry, now: MeasuredCall, rounding: Rounding | None) -> float:
    """The largest difference of the chosen logits as a multiple of what rounding explains."""
    before = entry.measured.logits_NC
    finite_NC = before.isfinite()
    scale = max_abs(torch.where(finite_NC, before, 0.0))
    explained = entry.rounding.largest + (rounding.largest if rounding else 0.0)
    limit = HEADROOM * (explained + LEAST * _eps(entry.call) * scale)
    delta_NC = torch.where(finite_NC, now.logits_NC - before, 0.0)
    return excess(max_abs(delta_NC), limit)


def _place(before: MeasuredCall, delta_NC: Tensor) -> tuple[int, int] | None:
    """The first chosen (row, position) that differs by a tenth of the worst."""
    worst_N = delta_NC.amax(-1)
    wrong = (worst_N > 0.1 * worst_N.max()).nonzero().flatten().tolist()
    return min((before.places[n] for n in wrong), key=lambda place: place[1], default=None)


def _first(
    entry: GoldenEntry,
    now: MeasuredCall,
    times_E: Tensor,
    apart: frozenset[Event],
    sure: frozenset[Event],
) -> DivergedModule | None:
    """The first module that differs and is `sure` not to be cut differently, or whose layer differs
    as well: that layer does not make up for it.
    """
    events = entry.measured.sketches.events
    lasting = (
        event
        for event in events
        if event in sure or (not sure and event in apart and _lasts(event, events, apart))
    )
    event = next(lasting, None)
    if event is None or event == LOGITS:
        return None
    number = events.index(event)
    before_GK, now_GK = entry.measured.sketches.at(event), now.sketches.at(event)
    if before_GK is None or now_GK is None:
        return None
    amounts_G, norms_G = sizes(now_GK - before_GK), entry.measured.sketches.norms_EG[number]
    start = int((amounts_G > 0.1 * amounts_G.max()).nonzero()[0])
    share = float(amounts_G.square().sum().sqrt() / norms_G.square().sum().sqrt())
    name, side = event
    home = (name.rpartition(".")[0] if side == "in" else name) or name
    return DivergedModule(
        module=attention_home(home),
        share=share,
        explained=share / float(times_E[number]),
        positions=stretches(entry.call.spec.length)[start],
    )


def _lasts(event: Event, events: tuple[Event, ...], apart: frozenset[Event]) -> bool:
    around = (_layer_of(event[0]), "out")
    if around in events:
        return around in apart
    behind = events[events.index(event) + 1 :]
    layers = [each for each in behind if each[1] == "out" and is_list_member(each[0])]
    return next(iter(layers), LOGITS) in apart | {LOGITS}


def _layer_of(name: str) -> str:
    """The outermost member of a list around a module, or the module itself."""
    parts = name.split(".")
    paths = (".".join(parts[:stop]) for stop in range(1, len(parts) + 1))
    return next((path for path in paths if is_list_member(path)), "")
