"""Whether positions turn queries and keys as the config promises, and alike in layers that are
promised the same.

Angles are read off what the projections gave and what the kernel was handed, so that no table of
the model is believed.

Axes: B batch, T positions, P pairs of channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import final

import torch
from torch import Tensor

from attncheck.attention.layers import layer_type
from attncheck.attention.rope_spec import COMPUTED_IN, RopeSpec, rope_specs
from attncheck.attention.rotary_tables import stored_tables
from attncheck.core.finding import Cause, Comparison, Divergence, Measurement, Verdict, skipped
from attncheck.judge.config_spec import known_factor
from attncheck.judge.layers import Attended
from attncheck.judge.projections import ROUNDINGS
from attncheck.judge.rotation_angles import Layout, Turning, shared_part, turning_of
from attncheck.model.precision import DTYPES, NAMES
from attncheck.model.subject import Subject
from attncheck.numerics.budget import HEADROOM

COARSE = 1e-3
NEARLY = 1e-5
UNSEEN = "nothing in sight turns its queries and keys"


@final
@dataclass(frozen=True, kw_only=True)
class Side:
    """The queries or the keys of one layer: how they were turned, and what they may be held to (a
    text: why to nothing).

    `known` says whether a factor on them is a promised multiplier.
    """

    name: str
    index: int | None
    what: str
    kind: tuple[str | None, int]
    turning: Turning
    promises: list[RopeSpec] | str
    known: Callable[[float, bool], bool]

    def __str__(self) -> str:
        return f"{self.name}: {self.what}"


@final
@dataclass(frozen=True, kw_only=True)
class Apart:
    """How far, in radians, a side is from what it is held to, where that is worst in budgets;
    `words` say what differs.
    """

    side: Side
    radians: float
    budget: float
    words: str = ""

    @property
    def excess(self) -> float:
        """How many budgets it is."""
        return self.radians / self.budget


@final
@dataclass
class RotationReader:
    """Reads how every layer of one forward turns its queries and keys; nothing else is kept of a
    layer.
    """

    subject: Subject
    length: int
    sides: list[Side] = field(default_factory=list)
    unread: dict[str, list[str]] = field(default_factory=dict)
    hint: Layout | None = None

    def __call__(self, layer: Attended) -> None:
        """Note how one layer turns its queries and keys."""
        if not layer.over(self.length):
            return
        query, key = layer.call.query_BHTD, layer.call.key_BGSD
        config = getattr(layer.call.module, "config", None) or self.subject.text_config
        if ROUNDINGS * torch.finfo(query.dtype).eps > COARSE:
            self._set_aside(layer, f"angles cannot be told in {self.subject.dtype_name}")
            return
        promises = rope_specs(config, layer.index, query.shape[-1], self.length)
        expected = (
            2 * len(promises[0].inv_freq_P) if isinstance(promises, list) else query.shape[-1]
        )
        turned = turning_of(query, layer.stages, expected, self.hint)
        keys = turning_of(key, layer.stages, expected, self.hint)
        self.hint = turned.layout if turned is not None and turned.layout else self.hint
        if keys is None and turned is not None and turned.layout:
            keys = shared_part(key, layer.stages, turned.layout, None)
        kind = (layer_type(config, layer.index), query.shape[-1])
        known = known_factor(config, self.subject.model, layer.call.module)
        for what, turning in (("queries", turned), ("keys", keys)):
            if turning is None:
                self._set_aside(layer, f"its {what} were not traced to a projection")
                continue
            self.sides.append(
                Side(
                    name=layer.name,
                    index=layer.index,
                    what=what,
                    kind=kind,
                    turning=turning,
                    promises=promises,
                    known=known,
                )
            )

    def _set_aside(self, layer: Attended, reason: str) -> None:
        self.unread.setdefault(reason, []).append(layer.name)


def rotation_cases(reader: RotationReader) -> Iterator[Measurement]:
    """One case over all layers that turn their queries and keys, and one with the reason for those
    that cannot be held.
    """
    table = _table_rounding(reader.subject)
    judged = _turned(reader)
    if judged and table <= COARSE:
        yield _compared(judged, table, reader.subject.loaded.own_dtype)
    elif judged:
        stored = f"its rotary tables are stored in {reader.subject.loaded.own_dtype}, which is too coarse"
        yield skipped("rotation of every layer", stored)
    for why, names in reader.unread.items():
        yield skipped(f"rotation of {len(names)} layers not judged", f"{names[0]}: {why}")


def _table_rounding(subject: Subject) -> float:
    """How far rounding moves an entry of a sine or cosine table that is kept from call to call."""
    if not stored_tables(subject.model):
        return 0.0
    own = DTYPES.get(subject.loaded.own_dtype, COMPUTED_IN)
    return max(torch.finfo(COMPUTED_IN).eps, torch.finfo(own).eps)


def _turned(reader: RotationReader) -> list[Side]:
    """The sides of layers of a kind that turns; where nothing of a kind does, the config may not
    say that it has no rotation.
    """
    turning = {side.kind for side in reader.sides if side.turning.pairs}
    for name in dict.fromkeys(side.name for side in reader.sides if side.kind not in turning):
        reader.unread.setdefault(UNSEEN, []).append(name)
    return [side for side in reader.sides if side.kind in turning]


def _compared(sides: list[Side], table: float, own: str) -> Measurement:
    found = [_apart(side, sides, table) for side in sides] + list(_offsets(sides, table))
    wrong = [each for each in found if each.excess > 1]
    shown = wrong[0] if wrong else max(found, key=lambda each: each.excess)
    layers = dict.fromkeys(side.name for side in sides)
    others = len(dict.fromkeys(each.side.name for each in wrong)) - 1
    more = f" (and {others} more layers)" if others > 0 else ""
    excused, why = (
        _throughout(sides, table, own)
        if wrong and all(each.side.turning.pairs for each in wrong)
        else (False, "")
    )
    return Comparison(
        f"rotation of {len(layers)} layers, one forward",
        Divergence(
            max_abs=shown.radians,
            positions=sum(side.turning.turn_BTP.shape[1] for side in sides),
        ),
        shown.budget,
        "rounding of the frequencies in the dtype that they are made in, times the position",
        broken=Verdict.WARN if excused else Verdict.FAIL,
        unit="angles in radians",
        note=f"{shown.side}: {shown.words}{more}{why}" if wrong else "",
        cause=Cause(module=shown.side.name if wrong else ""),
    )


def _throughout(sides: list[Side], table: float, own: str) -> tuple[bool, str]:
    """Whether a model that is wrong throughout is excused, and the reason for which it is wrong,
    where one fits every side.

    No config states the sense of the turn, and weights may be made for it; a cast of the whole
    model takes the list of frequencies along.
    """
    turning = [side for side in sides if side.turning.pairs]
    if all(_apart(_reversed(side), sides, table).excess <= 1 for side in turning):
        return True, "; so is every layer: weights may be made for it"
    for low in (torch.bfloat16, torch.float16):
        if all(_apart(_rounded(side, low), sides, table).excess <= 1 for side in turning):
            return (
                NAMES[low] == own,
                f"; in every layer the frequencies are those promised, rounded to {NAMES[low]}",
            )
    return False, ""


def _rounded(side: Side, low: torch.dtype) -> Side:
    """The same, held to frequencies that were rounded to a dtype."""
    if isinstance(side.promises, str):
        return side
    promises = [
        replace(each, inv_freq_P=each.inv_freq_P.to(COMPUTED_IN).to(low).double())
        for each in side.promises
    ]
    return replace(side, promises=promises)


def _reversed(side: Side) -> Side:
    """The same, turned the other way round."""
    return replace(side, turning=replace(side.turning, turn_BTP=side.turning.turn_BTP.conj()))


def _apart(side: Side, sides: list[Side], table: float) -> Apart:
    """The side against its promise, or against the layers of its kind where none is known."""
    if isinstance(side.promises, str):
        peers = [
            each for each in sides if each.kind == side.kind and isinstance(each.promises, str)
        ]
        promises, source = [_usual(peers, table)], "most of its kind turn it"
    else:
        promises, source = side.promises, "the config promises"
    return min(
        (_against(side, promise, source, table) for promise in promises),
        key=lambda each: each.excess,
    )


def _usual(peers: list[Side], table: float) -> RopeSpec:
    """What most of these turn by."""
    turns = [
        RopeSpec(inv_freq_P=peer.turning.steps_P, rounding=torch.finfo(COMPUTED_IN).eps)
        for peer in peers
    ]
    agreeing = [
        sum(_against(peer, turn, "", table).excess <= 1 for peer in peers) for turn in turns
    ]
    return turns[max(range(len(turns)), key=lambda each: agreeing[each])]


def _against(side: Side, promise: RopeSpec, source: str, table: float) -> Apart:
    turning, wanted_P = side.turning, promise.inv_freq_P
    apart = _angles(side, turning.turn_BTP, wanted_P, promise, source, table)
    if apart.excess <= 1:
        return max(apart, _gained(side, promise, table), key=lambda each: each.excess)
    order = _matching(turning.steps_P, wanted_P)
    if order is not None:
        permuted = _angles(side, turning.turn_BTP, wanted_P[order], promise, source, table)
        if permuted.excess <= 1:
            return permuted
    return apart


def _matching(steps_P: Tensor, wanted_P: Tensor) -> Tensor | None:
    """Which promised frequency each pair has, where pairs only stand in another order."""
    return (
        wanted_P.argsort()[steps_P.argsort().argsort()] if len(steps_P) == len(wanted_P) else None
    )


def _angles(
    side: Side, turn_BTP: Tensor, wanted_P: Tensor, promise: RopeSpec, source: str, table: float
) -> Apart:
    count = max(turn_BTP.shape[-1], len(wanted_P), 1)
    noise_P = _padded(side.turning.noise_P, count)
    wanted_P, steps_P = _padded(wanted_P, count), _padded(side.turning.steps_P, count)
    turn_BTP = torch.cat(
        [turn_BTP, turn_BTP.new_ones(*turn_BTP.shape[:2], count - turn_BTP.shape[-1])], -1
    )
    angle_TP = torch.arange(turn_BTP.shape[1], dtype=torch.float64)[:, None] * wanted_P
    left_BTP = turn_BTP * turn_BTP[:, :1].conj() * torch.polar(torch.ones_like(angle_TP), -angle_TP)
    radians_TP = left_BTP.angle().abs().amax(0)
    budget_TP = (
        HEADROOM * (promise.rounding * angle_TP.abs() + table)
        + 2 * noise_P
        + torch.finfo(torch.float64).eps * ROUNDINGS
    )
    worst = int((radians_TP / budget_TP).argmax())
    pair = worst % count
    words = _words(
        side, pair, steps_P, wanted_P, f"{source}{f' ({promise.origin})' if promise.origin else ''}"
    )
    flat = (radians_TP.flatten(), budget_TP.flatten())
    return Apart(
        side=side, radians=float(flat[0][worst]), budget=float(flat[1][worst]), words=words
    )


def _padded(values_P: Tensor, count: int) -> Tensor:
    return torch.cat([values_P, values_P.new_zeros(count - len(values_P))])


def _words(side: Side, pair: int, steps_P: Tensor, wanted_P: Tensor, source: str) -> str:
    got, want = float(steps_P[pair]), float(wanted_P[pair])
    if not side.turning.pairs:
        return f"they are not turned by positions; pair {pair} by {want:.4g} per token {source}"
    if abs(got + want) < NEARLY * abs(want):
        return f"pair {pair} is turned the other way round: by {got:.4g} per token, where {want:.4g} {source}"
    return f"pair {pair} is turned by {got:.4g} per token, where {want:.4g} {source}"


def _gained(side: Side, promise: RopeSpec, table: float) -> Apart:
    """What a scheme that multiplies the turned channels promises, unless a multiplier of the layer
    explains the rest.
    """
    gain, noise = (
        side.turning.gain,
        float(side.turning.noise_P.max()) if side.turning.pairs else 0.0,
    )
    budget = HEADROOM * (torch.finfo(COMPUTED_IN).eps + table) + noise
    if promise.gain == 1.0 or side.known(gain / promise.gain, False):
        return Apart(side=side, radians=0.0, budget=budget)
    words = f"what is turned is multiplied by {gain:.6g}, where the config promises {promise.gain:.6g} ({promise.origin})"
    return Apart(side=side, radians=abs(gain / promise.gain - 1), budget=budget, words=words)


def _offsets(sides: list[Side], table: float) -> Iterator[Apart]:
    """Queries and keys of a layer must stand at the same positions: turned alike at the first one."""
    queries = {side.name: side.turning for side in sides if side.what == "queries"}
    for side in sides:
        query, key = queries.get(side.name), side.turning
        if side.what != "keys" or query is None or query.pairs != key.pairs or not key.pairs:
            continue
        radians_P = (query.turn_BTP[:, 0] * key.turn_BTP[:, 0].conj()).angle().abs().amax(0)
        budget_P = HEADROOM * table + query.noise_P + key.noise_P
        worst = int((radians_P / budget_P).argmax())
        words = f"at the first token pair {worst} is {float(radians_P[worst]):.4g} away from that of the queries"
        yield Apart(
            side=side, radians=float(radians_P[worst]), budget=float(budget_P[worst]), words=words
        )
