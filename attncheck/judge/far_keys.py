"""The keys that one query reads far behind the border of a window or a chunk, on a kept cache.

Axes: B batch, H query heads, T query positions, S key positions.
"""

from __future__ import annotations

import copy

import torch

from attncheck.attention.call import AttentionCall, suspend_recording, weights_of
from attncheck.attention.layers import layer_index
from attncheck.core.errors import Unsupported
from attncheck.core.measurement import AtMost, Cause, Measurement
from attncheck.judge.attention_span import ObservedKeys, wrong_pairs
from attncheck.judge.config_spec import FULL, AttentionSpan, SpanSpec, span_spec
from attncheck.model.reach import Crossing
from attncheck.model.subject import Subject

FAR = "keys read behind the {0}"


def far_keys_case(crossing: Crossing) -> Measurement:
    """Whether the first query behind a border that is fed as one token reads, in every layer, the
    keys that the config states.

    Raises:
        Unsupported: no attention can be recorded, or the config states no spans.
    """
    subject = crossing.subject
    layers = [(each, _spec(subject, each)) for each in _observed(crossing)]
    stated = [(each, spec.spans) for each, spec in layers if spec.spans]
    if not stated:
        raise Unsupported(layers[0][1].reason if layers else "no layer was observed")
    wrong = [(each, spans) for each, spans in stated if _least(each, spans)]
    name = FAR.format(crossing.border)
    return AtMost(
        name,
        float(sum(_least(each, spans) for each, spans in wrong)),
        "(query, key) pairs differ from the config",
        positions=len(stated),
        note=_note(*wrong[0]) if wrong else "",
        cause=Cause(_fault(*wrong[0]), module=wrong[0][0].name) if wrong else Cause(),
    )


def _observed(crossing: Crossing) -> list[ObservedKeys]:
    """What each layer reads for the token behind the border; the tokens in front of it are fed."""
    subject, border = crossing.subject, crossing.border
    at, start = border.boundary.length, border.start
    names = {id(module): name for name, module in subject.model.named_modules()}
    cache = copy.deepcopy(crossing.cache)
    with torch.no_grad():
        fed = subject.passes.call(
            (border.row[start:at],), cache=cache, use_cache=True, before=start
        )

    def keep(call: AttentionCall) -> ObservedKeys:
        name = names[id(call.module)]
        with suspend_recording():
            reads_S = weights_of(call, blank=True)[0, :, 0].abs().sum(0) > 0
        return ObservedKeys(
            name=name,
            index=layer_index(call.module, name),
            module=call.module,
            reads_TS=reads_S[None],
            positions=(at,),
            stop=at + 1,
        )

    return subject.record_calls(
        (border.row[at : at + 1],), keep, cache=fed.cache, use_cache=True, before=at
    )


def _spec(subject: Subject, layer: ObservedKeys) -> SpanSpec:
    return span_spec(subject.text_config, layer.module, layer.index)


def _least(layer: ObservedKeys, spans: tuple[AttentionSpan, ...]) -> int:
    return min(wrong_pairs(layer, span) for span in spans)


def _note(layer: ObservedKeys, spans: tuple[AttentionSpan, ...]) -> str:
    reads, words = int(layer.reads_TS.sum()), " or ".join(map(str, spans))
    return (
        f"{layer.name}: the query at position {layer.positions[0]} reads {reads} keys; "
        f"expected: {words}"
    )


def _fault(layer: ObservedKeys, spans: tuple[AttentionSpan, ...]) -> str:
    return "window-ignored" if spans != (FULL,) and not wrong_pairs(layer, FULL) else ""
