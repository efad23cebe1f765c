"""Judging every layer of a pass: of one forward, or of the pieces that are fed on a cache, padding
included.

Layers are judged while the pass runs, one at a time; of each only what its later calls are held to
is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import final

from attncheck.core.errors import Unsupported
from attncheck.judge.attention_span import Seen, excuse
from attncheck.judge.call_position import Standing
from attncheck.judge.judge import Verdicted, held_to_promise
from attncheck.judge.layer_spec import Known, readable_of
from attncheck.judge.layers import Attended, read_layers
from attncheck.model.forward_spec import ForwardSpec, Mask2D
from attncheck.model.subject import Subject

OTHER = "attends to something else than the model's own tokens"
Called = tuple[str, int]
"""A layer's name, and how often it ran before in the same forward."""


@final
@dataclass
class Reading:
    """Layers that could be judged, and layers that could not, by the reason; what was read by those
    that read otherwise.
    """

    layers: list[Verdicted] = field(default_factory=list)
    unread: dict[str, list[str]] = field(default_factory=dict)
    known: dict[Called, Known] = field(default_factory=dict)
    odd: list[Seen] = field(default_factory=list)


@final
@dataclass
class _Reader:
    """Sorts the calls of a pass into its pieces and judges each. `standings` are the pieces by
    their number of queries.
    """

    subject: Subject
    standings: dict[int, Standing]
    known: dict[Called, Known] | None = None
    readings: dict[int, Reading] = field(default_factory=dict)
    calls: Counter[tuple[str, int]] = field(default_factory=Counter)

    def __call__(self, layer: Attended) -> None:
        new = layer.call.query_BHTD.shape[2]
        called = (layer.name, self.calls[layer.name, new])
        self.calls[layer.name, new] += 1
        standing = self.standings.get(new)
        if standing is None:
            new = next(iter(self.standings))
        if self.known is not None and called not in self.known:
            return  # one forward has said already why it cannot be judged, or that it is wrong
        if standing is None or (self.known is None and not layer.over(new)):
            self._set_aside(layer, OTHER, new)
            return
        try:
            self._judge(layer, called, standing)
        except Unsupported as reason:
            self._set_aside(layer, str(reason), new)

    def _judge(self, layer: Attended, called: Called, standing: Standing) -> None:
        subject, reading = self.subject, self.readings.setdefault(standing.new, Reading())
        known = self.known[called] if self.known is not None else None
        ahead = not subject.can.decodes
        verdict = held_to_promise(subject.text_config, subject.model, layer, standing, known, ahead)
        if verdict.known is not None:
            reading.known[called] = verdict.known
        if verdict.reach_differs:
            reading.odd.append(_seen(layer, standing))
        reading.layers.append(replace(verdict, known=None))

    def _set_aside(self, layer: Attended, reason: str, new: int) -> None:
        self.readings.setdefault(new, Reading()).unread.setdefault(reason, []).append(layer.name)


def _seen(layer: Attended, standing: Standing) -> Seen:
    reads_HTS = (
        readable_of(layer).detach().any(0)[..., : standing.stop]
    )  # behind it a buffer has empty slots
    return Seen(
        name=layer.name,
        index=layer.index,
        module=layer.call.module,
        reads_TS=reads_HTS.any(0),
        positions=tuple(range(standing.before, standing.stop)),
        stop=standing.stop,
        alike=bool((reads_HTS.any(0) == reads_HTS.all(0)).all()),
        masked=layer.call.mask is not None,
        how="kernel",
    )


def read_forward(subject: Subject, spec: ForwardSpec) -> Reading:
    """One forward without a cache.

    Raises:
        Unsupported: no attention can be watched, or the model cannot be asked this way.
    """
    return read_pieces(subject, spec, None)[0]


def read_pieces(
    subject: Subject, spec: ForwardSpec, known: dict[Called, Known] | None
) -> list[Reading]:
    """Every piece of a pass (its chunks, which must have different lengths), held to what one
    forward has shown.

    Raises:
        Unsupported: no attention can be watched, or the model cannot be asked this way.
    """
    standings = _standings(spec)
    readings = _read(subject, spec, standings, known)
    for reading in readings:
        if reading.odd:
            _excuse(reading, lambda: _read_again(subject, spec, standings))
        _set_unknown_aside(reading)
    return readings


def schedule(subject: Subject) -> tuple[int, ...]:
    """A prefill, a chunk and a step, all of different lengths; without the chunk where it does not
    fit or is refused.
    """
    length = subject.inputs.length
    half = (length + 1) // 2
    return (
        (half, length - half - 1, 1) if length - half > 2 and subject.can.cache else (length - 1, 1)
    )


def _standings(spec: ForwardSpec) -> dict[int, Standing]:
    padding = tuple(row.index(1) for row in spec.mask.rows) if isinstance(spec.mask, Mask2D) else ()
    sizes = spec.chunks or (spec.length,)
    starts = (0, *accumulate(sizes))
    return {
        new: Standing(new=new, before=start, padding=padding)
        for new, start in zip(sizes, starts, strict=False)
    }


def _read(
    subject: Subject,
    spec: ForwardSpec,
    standings: dict[int, Standing],
    known: dict[Called, Known] | None,
) -> list[Reading]:
    reader = _Reader(subject, standings, known)
    refused = read_layers(subject, spec, reader)
    readings = [reader.readings.get(new, Reading()) for new in standings]
    if known is None:
        for name, reason in refused.items():
            readings[0].unread.setdefault(reason, []).append(name)
    return readings


def _read_again(subject: Subject, spec: ForwardSpec, standings: dict[int, Standing]) -> list[Seen]:
    """What every layer reads of the same pass with other tokens."""
    found: list[Seen] = []

    def reader(layer: Attended) -> None:
        standing = standings.get(layer.call.query_BHTD.shape[2])
        if standing is not None:
            found.append(_seen(layer, standing))

    read_layers(
        subject,
        replace(spec, tokens=tuple(subject.inputs.other(row) for row in spec.tokens)),
        reader,
    )
    return found


def _excuse(reading: Reading, again: Callable[[], list[Seen]]) -> None:
    """Set aside layers whose reach is not a matter of positions."""
    others = again()
    reasons = {seen.name: excuse(seen, others) for seen in reading.odd}
    reading.layers = [
        replace(layer, unknown=layer.unknown or reasons.get(layer.name, ""))
        if layer.reach_differs
        else layer
        for layer in reading.layers
    ]


def _set_unknown_aside(reading: Reading) -> None:
    kept = []
    for layer in reading.layers:
        if layer.unknown and not layer.holds:
            reason = layer.unknown.replace(f"{layer.name}: ", "").replace(f"{layer.name} ", "it ")
            reading.unread.setdefault(reason, []).append(layer.name)
        else:
            kept.append(layer)
    reading.layers = kept
