"""Every layer reads as far back as its config states.

What it checks
    Each attention layer reads exactly the keys that the config states for it: the whole past, a
    sliding window, or its own chunk. No older key more, none less, none from the future; in one
    forward and on a filled cache.

Why it matters
    A window that is off by one, ignored, or given to the wrong layers changes nothing until the
    input is longer than the window, and little after that. Implementations disagree without an
    error, and serving engines copy the wrong one.

How it measures
    The layer's own kernel runs again with blank queries and the identity as values: its output is
    each query's share of each key, and a share above zero means that the key is read. Where the
    kernel cannot be called, the gradient of the attention module's output at a few queries with
    respect to its input shows the same. Every (query, key) pair is compared with `layer_types`,
    `sliding_window`, `attention_chunk_size` and the per-layer patterns.

False alarms
    Layers that choose keys by content (sparse indexers, hashing) have no fixed span and
    are skipped. A window that the input is not longer than does not show: it is skipped and the
    sentence says so; pass a longer `--length`.

References
    Beltagy et al. 2020 (Longformer), Jiang et al. 2023 (Mistral 7B). Hugging Face transformers
    issues 26792, 28980, 33586, 35924 (windows off by one, ignored by one implementation, given to
    the wrong layers).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from attncheck.probing import (
    AtMost,
    Capability,
    Evidence,
    ForwardSpec,
    Measurement,
    ObservedKeys,
    Probe,
    Ruling,
    SpanSpec,
    Subject,
    Unsupported,
    Verdict,
    all_ones,
    chosen,
    media_cases,
    not_measured,
    span_spec,
    wrong_pairs,
)
from attncheck_probes.window.span_case import in_words, observed, span_case


@dataclass(frozen=True, kw_only=True)
class Window(Probe):
    """Compares the keys that each layer reads with those that its config states."""

    name = "window"
    title = "every layer reads exactly as far back as its config states"
    promise = True
    needs = ("sees_history",)
    controls = (
        "window-off-by-one",
        "window-ignored",
        "window-layers-swapped",
        "mask-off-by-one",
        "causal-mask-missing",
    )

    def measure(self, subject: Subject) -> Iterator[Measurement]:
        """One forward without and with a 2D mask; a prefill, a chunk and two steps on a cache."""
        plain, can = ForwardSpec(subject.inputs.tokens), subject.can
        yield from _cases(subject, "one forward", plain, Capability())
        masked = replace(plain, mask=all_ones(plain.tokens))
        yield from _cases(subject, "one forward, 2D mask", masked, can.mask_2d)
        half = plain.length // 2
        chunks = tuple(size for size in (half, plain.length - half - 2, 1, 1) if size)
        cached = replace(plain, chunks=chunks)
        yield from _cases(subject, "on a cache", cached, can.watch & can.cache)
        yield from media_cases.windows(subject)

    def judge(self, evidence: Evidence) -> Ruling:
        """The worst case decides; a pass says which spans the input did not reach."""
        ruling = super().judge(evidence)
        notes = [case.note for case in evidence.measurements if case.expect == "skip"]
        unseen = next((note for note in notes if note.startswith("input (")), "")
        if ruling.verdict is not Verdict.PASS or not unseen:
            return ruling
        return replace(ruling, summary=f"{ruling.summary}; {unseen}")


def _cases(subject: Subject, how: str, spec: ForwardSpec, can: Capability) -> Iterator[Measurement]:
    if not chosen(how):
        return
    try:
        can.require()
        groups = _by_spec(subject, observed(subject, spec))
    except Unsupported as reason:
        yield not_measured(how, reason)
        return
    swapped = _swapped(groups)
    for stated, layers in groups.items():
        case = span_case(subject, f"{in_words(stated)}, {how}", stated, layers, spec)
        if swapped and isinstance(case, AtMost) and case.value:
            case = replace(case, cause=replace(case.cause, fault="window-layers-swapped"))
        yield case


def _by_spec(subject: Subject, layers: list[ObservedKeys]) -> dict[SpanSpec, list[ObservedKeys]]:
    groups: dict[SpanSpec, list[ObservedKeys]] = {}
    for each in layers:
        stated = span_spec(subject.text_config, each.module, each.index)
        groups.setdefault(stated, []).append(each)
    if not groups:
        raise Unsupported("no attention layer over the model's own tokens was seen")
    return groups


def _swapped(groups: dict[SpanSpec, list[ObservedKeys]]) -> bool:
    """Whether there are two kinds of layers, and each has the other's span."""
    simple = [(spec.spans[0], layers) for spec, layers in groups.items() if len(spec.spans) == 1]
    if len(simple) != 2 or not wrong_pairs(simple[0][1][0], simple[0][0]):
        return False
    (one, first), (two, second) = simple
    pairs = *((each, two) for each in first), *((each, one) for each in second)
    return not any(wrong_pairs(*pair) for pair in pairs)
