"""Judge every layer of a pass: of one forward, or of the chunks that are fed on a cache, padding
included.

Layers are judged while the pass runs; of each only what its later calls are checked against is
kept.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import final

from attncheck.core.errors import Unsupported
from attncheck.judge.attention_span import ObservedKeys, exemption, observed_keys
from attncheck.judge.judge import LayerResult, judge_layer
from attncheck.judge.layer_calls import LayerCall, read_layers
from attncheck.judge.layer_spec import CallPosition, PrefillState
from attncheck.judge.slot_order import OwnSlotOrder
from attncheck.model.forward_spec import ForwardSpec, Mask2D
from attncheck.model.subject import Subject

OTHER = "attends to something other than the model's own tokens"
CallKey = tuple[str, int]
"""A layer's name, and how often it ran before in the same forward."""
Prefills = dict[CallKey, PrefillState]
Positions = dict[int, CallPosition]
"""The chunks of a pass by their number of queries."""


@final
@dataclass
class LayerResults:
    """The layers of one chunk: judged, and not judged by the reason; `unexpected` are the keys read
    by those that only other keys explain.
    """

    layers: list[LayerResult] = field(default_factory=list)
    unread: dict[str, list[str]] = field(default_factory=dict)
    prefills: Prefills = field(default_factory=dict)
    unexpected: list[ObservedKeys] = field(default_factory=list)

    def set_aside(self, name: str, reason: str) -> None:
        """Note a layer that cannot be judged."""
        self.unread.setdefault(reason, []).append(name)


@final
@dataclass
class _Judge:
    """Assigns the calls of a pass to its chunks and judges each."""

    subject: Subject
    positions: Positions
    prefills: Prefills | None = None
    results: dict[int, LayerResults] = field(default_factory=dict)
    calls: Counter[CallKey] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.results = {new: LayerResults() for new in self.positions}
        self.reordered: dict[str, str] = {}

    def __call__(self, layer: LayerCall) -> None:
        new = layer.call.query_BHTD.shape[2]
        key = (layer.name, self.calls[layer.name, new])
        self.calls[layer.name, new] += 1
        position = self.positions.get(new)
        # chunks have different lengths, so the number of queries tells which one this is
        results = self.results.get(new) or next(iter(self.results.values()))
        if self.prefills is not None and key not in self.prefills:
            return  # one forward has already said why it cannot be judged, or that it fails
        if position is None or (self.prefills is None and not layer.over(new)):
            results.set_aside(layer.name, OTHER)
            return
        if layer.name in self.reordered:
            results.set_aside(layer.name, self.reordered[layer.name])
            return
        try:
            self._judge(layer, key, position, results)
        except OwnSlotOrder as reason:
            self.reordered[layer.name] = str(reason)
            results.set_aside(layer.name, str(reason))
        except Unsupported as reason:
            results.set_aside(layer.name, str(reason))

    def _judge(
        self, layer: LayerCall, key: CallKey, position: CallPosition, results: LayerResults
    ) -> None:
        subject = self.subject
        prefill = self.prefills[key] if self.prefills is not None else None
        bidirectional = not subject.can.decodes
        result = judge_layer(
            subject.text_config, subject.model, layer, position, prefill, bidirectional
        )
        if result.prefill is not None:
            results.prefills[key] = result.prefill
        if result.other_keys:
            results.unexpected.append(_observed(layer, position))
        results.layers.append(replace(result, prefill=None))


def _observed(layer: LayerCall, position: CallPosition) -> ObservedKeys:
    return observed_keys(layer, range(position.before, position.stop))


def judge_forward(subject: Subject, spec: ForwardSpec) -> LayerResults:
    """Judge one forward without a cache.

    Raises:
        Unsupported: the model runs no attention that can be recorded, or cannot take this pass.
    """
    return judge_chunks(subject, spec, None)[0]


def judge_chunks(
    subject: Subject, spec: ForwardSpec, prefills: Prefills | None
) -> list[LayerResults]:
    """Judge every chunk of a pass (all of different lengths), against what one forward has shown.

    Raises:
        Unsupported: the model runs no attention that can be recorded, or cannot take this pass.
    """
    positions = _positions(spec)
    judge = _Judge(subject, positions, prefills)
    refused = read_layers(subject, spec, judge)
    chunks = list(judge.results.values())
    for name, reason in refused.items() if prefills is None else ():
        chunks[0].set_aside(name, reason)
    unexpected = [results for results in chunks if results.unexpected]
    others = _with_other_tokens(subject, spec, positions) if unexpected else []
    for results in unexpected:
        _exempt(results, others)
    for results in chunks:
        _set_unknown_aside(results)
    return chunks


def schedule(subject: Subject) -> tuple[int, ...]:
    """A prefill, a chunk and a step, all of different lengths; no chunk where none fits or the
    model takes none.
    """
    length = subject.inputs.length
    half = (length + 1) // 2
    fits = length - half > 2 and subject.can.cache
    return (half, length - half - 1, 1) if fits else (length - 1, 1)


def _positions(spec: ForwardSpec) -> Positions:
    padding = tuple(row.index(1) for row in spec.mask.rows) if isinstance(spec.mask, Mask2D) else ()
    sizes = spec.chunks or (spec.length,)
    return {
        new: CallPosition(new=new, before=start, padding=padding)
        for new, start in zip(sizes, (0, *accumulate(sizes)), strict=False)
    }


def _with_other_tokens(
    subject: Subject, spec: ForwardSpec, positions: Positions
) -> list[ObservedKeys]:
    """What every layer reads in the same pass with other tokens."""
    found: list[ObservedKeys] = []

    def reader(layer: LayerCall) -> None:
        position = positions.get(layer.call.query_BHTD.shape[2])
        if position is not None:
            found.append(_observed(layer, position))

    rows = tuple(subject.inputs.other(row) for row in spec.tokens)
    read_layers(subject, replace(spec, tokens=rows), reader)
    return found


def _exempt(results: LayerResults, others: list[ObservedKeys]) -> None:
    """Set aside layers whose keys do not depend on positions alone."""
    reasons = {each.name: exemption(each, others) for each in results.unexpected}
    results.layers = [
        replace(layer, unknown=layer.unknown or reasons.get(layer.name, ""))
        if layer.other_keys
        else layer
        for layer in results.layers
    ]


def _set_unknown_aside(results: LayerResults) -> None:
    for layer in results.layers:
        if layer.unknown and not layer.passed:
            reason = layer.unknown.replace(f"{layer.name}: ", "").replace(f"{layer.name} ", "it ")
            results.set_aside(layer.name, reason)
    results.layers = [layer for layer in results.layers if layer.passed or not layer.unknown]
