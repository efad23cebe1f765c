"""The keys that layers of one spec read, as a case: how many pairs are wrong, which fault fits.

Axes: T query positions, S key positions.
"""

from __future__ import annotations

from dataclasses import replace

from attncheck.probing import (
    FULL,
    AtMost,
    AttentionSpan,
    Cause,
    ForwardSpec,
    Measurement,
    ObservedKeys,
    SpanSpec,
    Subject,
    attention_span,
    skipped,
    wrong_pairs,
)

DRAWN = 64
"""Longer inputs are not drawn."""


def observed(subject: Subject, spec: ForwardSpec) -> list[ObservedKeys]:
    """The keys that each layer reads: at a kernel that can be called, else in the gradient."""
    if subject.can.watch:
        return attention_span.observed_at_kernel(subject, spec)
    return attention_span.observed_in_gradient(subject, spec)


def in_words(stated: SpanSpec) -> str:
    """The spans that the config leaves open, or why it states none."""
    return " or ".join(map(str, stated.spans)) or stated.reason


def span_case(
    subject: Subject, name: str, stated: SpanSpec, layers: list[ObservedKeys], spec: ForwardSpec
) -> Measurement:
    """The layers of one spec against it, described by the head that differs most."""
    if not stated.spans:
        return skipped(name, stated.reason)
    unkept = _unkept(subject, stated, layers)
    wrong = layers if unkept else [each for each in layers if _least_wrong(each, stated)]
    exempt = _exempt(subject, spec, wrong)
    guilty = [each for each in wrong if not exempt[each.name]]
    if wrong and not guilty:
        return skipped(name, exempt[wrong[0].name])
    worst = max(guilty or layers, key=lambda each: _least_wrong(each, stated))
    nearest = min(stated.spans, key=lambda span: wrong_pairs(worst, span))
    shown, head = worst.worst_head(nearest)
    value = wrong_pairs(shown, nearest) or unkept
    if not value and (unseen := _unseen(shown, stated)):
        return skipped(name, unseen)
    return AtMost(
        name,
        float(value),
        "(query, key) pairs differ from the config",
        positions=sum(len(each.positions) for each in layers),
        note=_note(shown, head, stated, value),
        cause=Cause(_fault(shown, stated), module=worst.name) if value else Cause(),
        visible=attention_span.drawn(shown, nearest) if worst.stop <= DRAWN else (),
    )


def _exempt(subject: Subject, spec: ForwardSpec, wrong: list[ObservedKeys]) -> dict[str, str]:
    """Why each of these layers may read other keys than the config states; empty where it may
    not.
    """
    design = subject.can.decodes.reason
    if design or not wrong:
        return {each.name: design for each in wrong}
    other = replace(spec, tokens=(subject.inputs.other(subject.inputs.row),))
    others = observed(subject, other)
    return {each.name: attention_span.exemption(each, others) for each in wrong}


def _least_wrong(layer: ObservedKeys, stated: SpanSpec) -> int:
    return min(wrong_pairs(layer, span) for span in stated.spans)


def _unkept(subject: Subject, stated: SpanSpec, layers: list[ObservedKeys]) -> int:
    """The wrong pairs of a window that the config states without saying for which layers, where all
    layers read the whole past.
    """
    length = subject.inputs.length
    sliding = [span for span in stated.spans if span.kind != "full" and span.size < length]
    if len(stated.spans) < 2 or not sliding or any(wrong_pairs(each, FULL) for each in layers):
        return 0
    return sum(wrong_pairs(each, sliding[0]) for each in layers)


def _unseen(shown: ObservedKeys, stated: SpanSpec) -> str:
    """Why nothing was seen of where the spans end; empty where it was."""
    size = max(span.size for span in stated.spans)
    if size < shown.stop:
        return ""
    what = "attention chunk" if stated.spans[0].kind == "chunked" else "sliding window"
    compared = "shorter" if shown.stop < size else "not longer"
    return f"input ({shown.stop} tokens) is {compared} than the {what} ({size})"


def _note(shown: ObservedKeys, head: int | None, stated: SpanSpec, wrong: int) -> str:
    if not wrong:
        return f"seen at the {shown.how}"
    if len(stated.spans) > 1 and wrong_pairs(shown, FULL) == 0 and head is None:
        return f"no layer has {stated.spans[0]}, which the config states without naming layers"
    nearest = min(stated.spans, key=lambda span: wrong_pairs(shown, span))
    query = int(attention_span.wrong_TS(shown, nearest).any(1).nonzero()[-1])
    keys = int(shown.reads_TS[query].sum())
    ahead = ", some of them ahead of it" if attention_span.reads_ahead(shown) else ""
    place = shown.name if head is None else f"{shown.name}, head {head}"
    read = f"{place}: the query at position {shown.positions[query]} reads {keys} keys{ahead}"
    return f"{read}; expected: {in_words(stated)}"


def _fault(layer: ObservedKeys, stated: SpanSpec) -> str:
    """The name of the fault that fits exactly, if any."""
    if attention_span.reads_ahead(layer):
        return ""
    if stated.spans != (FULL,) and wrong_pairs(layer, FULL) == 0:
        return "window-ignored"
    steps = ((span, step) for span in stated.spans if span.size > 1 for step in (-1, 1))
    near = (AttentionSpan(span.kind, span.size + step) for span, step in steps)
    return "window-off-by-one" if any(wrong_pairs(layer, each) == 0 for each in near) else ""
