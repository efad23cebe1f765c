"""How far back every layer reads.

What it checks
    Each attention layer reads exactly the keys that the config promises for it: the whole past, a
    sliding window, or its own chunk. No key more on the old side, none less, none from the future;
    in one forward and on a filled cache.

Why it matters
    A window that is off by one, ignored, or given to the wrong layers changes nothing until the
    input is longer than the window, and little after that. Implementations disagree in silence, and
    serving engines copy the wrong one.

How it measures
    The layer's own kernel is called again with blank queries and the identity as values: what comes
    out is each query's share of each key, and a share above zero means that it is read. Where the
    kernel is out of reach, the gradient of the attention module's output at a few queries with
    respect to its input says the same. Every (query, key) pair is compared with the promise of
    `layer_types`, `sliding_window`, `attention_chunk_size` and the per-layer patterns.

False alarms
    Layers that choose keys by content (sparse indexers, hashing) or by head promise no fixed reach
    and are skipped, as are layers that declare themselves not causal. A window longer than the
    input cannot be seen: pass a longer `--length`.

References
    Beltagy et al. 2020 (Longformer), Jiang et al. 2023 (Mistral 7B). Hugging Face transformers
    issues 26792, 28980, 33586, 35924 (windows off by one, ignored by one implementation, given to
    the wrong layers).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, final

from attncheck.probing import (
    FULL,
    AtMost,
    AttentionSpan,
    Capability,
    Cause,
    ForwardSpec,
    Measurement,
    Probe,
    SpanSpec,
    Subject,
    Unsupported,
    all_ones,
    attention_span,
    skipped,
    span_spec,
)

# Axes: T query positions, S key positions.

DRAWN = 64
Ask = Callable[[Subject, ForwardSpec], list[attention_span.ObservedKeys]]


@final
@dataclass(frozen=True, kw_only=True)
class Window(Probe):
    """Compares what each layer reads with what its config promises."""

    name: ClassVar[str] = "window"
    title: ClassVar[str] = "every layer reads exactly as far back as promised"
    needs: ClassVar[tuple[str, ...]] = ("sees_history",)
    controls: ClassVar[tuple[str, ...]] = (
        "window-off-by-one",
        "window-ignored",
        "window-layers-swapped",
        "mask-off-by-one",
        "causal-mask-missing",
    )

    def measure(self, subject: Subject) -> Iterator[Measurement]:
        """One forward without and with a 2D mask, then a prefill, a chunk and two steps on a cache."""
        tokens, length = subject.inputs.tokens, subject.inputs.length
        ask: Ask = (
            attention_span.observed_at_kernel
            if subject.can.watch
            else attention_span.observed_in_gradient
        )
        yield from self._cases(subject, "one forward", ForwardSpec(tokens), ask, Capability())
        yield from self._cases(
            subject,
            "one forward, 2D mask",
            ForwardSpec(tokens, mask=all_ones(tokens)),
            ask,
            subject.can.mask_2d,
        )
        half = length // 2
        schedule = tuple(size for size in (half, length - half - 2, 1, 1) if size)
        can = subject.can.watch & subject.can.cache
        yield from self._cases(
            subject, "on a cache", ForwardSpec(tokens, chunks=schedule), ask, can
        )

    def _cases(
        self, subject: Subject, way: str, spec: ForwardSpec, ask: Ask, can: Capability
    ) -> Iterator[Measurement]:
        try:
            can.require()
            groups = _by_promise(subject, ask(subject, spec))
        except Unsupported as reason:
            yield skipped(way, str(reason))
            return
        swapped = _swapped(groups)
        for promise, seen in groups.items():
            name = f"{_named(promise)}, {way}"
            case = _case(
                subject, name, promise, seen, lambda: ask(subject, _changed(subject, spec))
            )
            if swapped and isinstance(case, AtMost) and case.value:
                case = replace(case, cause=replace(case.cause, fault="window-layers-swapped"))
            yield case


def _changed(subject: Subject, spec: ForwardSpec) -> ForwardSpec:
    return ForwardSpec(
        (subject.inputs.other(subject.inputs.row),), chunks=spec.chunks, mask=spec.mask
    )


def _by_promise(
    subject: Subject, seen: list[attention_span.ObservedKeys]
) -> dict[SpanSpec, list[attention_span.ObservedKeys]]:
    groups: dict[SpanSpec, list[attention_span.ObservedKeys]] = {}
    for each in seen:
        groups.setdefault(span_spec(subject.text_config, each.module, each.index), []).append(each)
    if not groups:
        raise Unsupported("no attention layer over the model's own tokens was seen")
    return groups


def _swapped(groups: dict[SpanSpec, list[attention_span.ObservedKeys]]) -> bool:
    """Whether layers of one promise keep that of others, and the other way round."""
    simple = [
        (promise.spans[0], seen) for promise, seen in groups.items() if len(promise.spans) == 1
    ]
    if len(simple) != 2 or not attention_span.wrong_pairs(simple[0][1][0], simple[0][0]):
        return False
    (one, first), (two, second) = simple
    return not any(attention_span.wrong_pairs(each, two) for each in first) and not any(
        attention_span.wrong_pairs(each, one) for each in second
    )


def _named(promise: SpanSpec) -> str:
    return " or ".join(map(str, promise.spans)) or promise.reason


def _case(
    subject: Subject,
    name: str,
    promise: SpanSpec,
    seen: list[attention_span.ObservedKeys],
    again: Callable[[], list[attention_span.ObservedKeys]],
) -> Measurement:
    if not promise.spans:
        return skipped(name, promise.reason)
    worst = max(seen, key=lambda each: _least_wrong(each, promise))
    wrong = _least_wrong(worst, promise)
    sliding = [
        reach
        for reach in promise.spans
        if reach.kind != "full" and reach.size < subject.inputs.length
    ]
    if (
        not wrong
        and len(promise.spans) > 1
        and sliding
        and all(attention_span.wrong_pairs(each, FULL) == 0 for each in seen)
    ):
        wrong = sum(attention_span.wrong_pairs(each, sliding[0]) for each in seen)
    if wrong and (reason := subject.can.decodes.reason or attention_span.exemption(worst, again())):
        return skipped(name, reason)
    return AtMost(
        name,
        float(wrong),
        "(query, key) pairs are not as promised",
        positions=sum(len(each.positions) for each in seen),
        note=_explained(worst, promise, wrong),
        cause=Cause(_fault(worst, promise), module=worst.name) if wrong else Cause(),
        visible=_picture(worst, promise),
    )


def _picture(seen: attention_span.ObservedKeys, promise: SpanSpec) -> tuple[str, ...]:
    """Who reads whom in the layer that is furthest from its promise, where that fits on a page."""
    nearest = min(promise.spans, key=lambda reach: attention_span.wrong_pairs(seen, reach))
    return attention_span.drawn(seen, nearest) if seen.stop <= DRAWN else ()


def _least_wrong(seen: attention_span.ObservedKeys, promise: SpanSpec) -> int:
    return min(attention_span.wrong_pairs(seen, reach) for reach in promise.spans)


def _explained(seen: attention_span.ObservedKeys, promise: SpanSpec, wrong: int) -> str:
    last, keys = seen.positions[-1], int(seen.reads_TS[-1].sum())
    if not wrong:
        hidden = max((reach.size for reach in promise.spans), default=0) >= seen.stop
        return f"seen at the {seen.how}" + (
            "; the input is not longer than the window" if hidden else ""
        )
    if len(promise.spans) > 1 and attention_span.wrong_pairs(seen, FULL) == 0:
        return f"no layer keeps {promise.spans[0]}, which the config states without saying for which layers"
    ahead = ", some of them ahead of it" if attention_span.reads_ahead(seen) else ""
    return f"{seen.name}: the query at position {last} reads {keys} keys{ahead}; promised: {_named(promise)}"


def _fault(seen: attention_span.ObservedKeys, promise: SpanSpec) -> str:
    """The catalogue's name for what was seen, where one fits exactly."""
    if attention_span.reads_ahead(seen):
        return ""
    if promise.spans != (FULL,) and attention_span.wrong_pairs(seen, FULL) == 0:
        return "window-ignored"
    near = (
        AttentionSpan(reach.kind, reach.size + step)
        for reach in promise.spans
        for step in (-1, 1)
        if reach.size > 1
    )
    return (
        "window-off-by-one"
        if any(attention_span.wrong_pairs(seen, reach) == 0 for reach in near)
        else ""
    )
