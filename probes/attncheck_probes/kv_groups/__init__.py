"""Query heads read the KV head of their own group.

What it checks
    In every layer, query head h reads KV head h // (heads / kv_heads): neighbouring query heads
    share a KV head. With one KV head for each query head the map is the identity; with a single one
    all heads read it. The map is reported.

Why it matters
    `repeat` instead of `repeat_interleave`, or a reshape in the wrong order, tiles the heads: query
    head h reads KV head h % kv_heads. Shapes and norms stay, and a converted checkpoint writes
    nonsense.

How it measures
    At the attention kernel, during a forward: the same call runs again with some KV heads
    disturbed, and the query heads whose output changes at all are the ones that read them. Heads
    are disturbed in the pattern of the binary digits of their numbers, keys and values separately,
    so that a layer takes a few kernel calls. In a prefill and in a decode step, in each
    implementation. Where the kernel receives repeated heads, heads with identical keys show the
    groups.

False alarms
    Models without a softmax over scores are skipped. Latent attention (MLA) passes one key for each
    query head: the identity. A model that repeats its keys by itself may tile them on purpose, with
    weights stored so (JetMoE, where each expert has a head for every KV head): a `warn`, where
    every layer does.

References
    Ainslie et al. 2023 (GQA). llama.cpp issue 2376, TinyLlama issue 24 (heads un-permuted with the
    wrong number of heads).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from attncheck.probing import (
    AtMost,
    Cause,
    ForwardSpec,
    Measurement,
    Probe,
    Subject,
    Unsupported,
    Verdict,
    attempt,
)
from attncheck_probes.kv_groups.head_maps import LayerHeads, in_words, layer_heads

IMPLEMENTATIONS = ("sdpa", "eager")


@dataclass(frozen=True, kw_only=True)
class KvGroups(Probe):
    """Disturbs KV heads and watches the query heads."""

    name = "kv-groups"
    title = "query heads read the KV head of their own group"
    promise = True
    needs = ("watch",)
    controls = ("kv-groups-tiled",)

    def measure(self, subject: Subject) -> Iterator[Measurement]:
        """The implementation in use first; in a prefill and in a decode step."""
        for attn in (None, *(each for each in IMPLEMENTATIONS if each != subject.attn)):
            for decode in (False, True):
                name = f"{'decode' if decode else 'prefill'}, {attn or subject.attn}"
                yield attempt(name, _case, subject, name, attn, decode)


def _case(subject: Subject, name: str, attn: str | None, decode: bool) -> Measurement:
    if decode:
        subject.can.steps.require()
    layers = _layers(subject, attn, decode)
    if not layers:
        raise Unsupported("no layer passes its kernel heads that can be told apart")
    if all(len(set(layer.expected)) == 1 for layer in layers):
        raise Unsupported("all query heads share one KV head: there are none to mix up")
    wrong = [layer for layer in layers if layer.wrong]
    shown = (wrong or layers)[0]
    designed = len(wrong) == len(layers) and all(layer.repeated for layer in wrong)
    cause = Cause(module=shown.module) if wrong else Cause()
    if wrong and all(layer.tiled for layer in wrong):
        cause = Cause("kv-groups-tiled", 0.0, shown.module)
    return AtMost(
        name,
        float(sum(layer.wrong for layer in layers)),
        "query heads answer to a KV head of another group",
        broken=Verdict.WARN if designed else Verdict.FAIL,
        positions=sum(len(layer.found) for layer in layers),
        note=f"{shown.module}: {in_words(shown.found)}",
        cause=cause,
    )


def _layers(subject: Subject, attn: str | None, decode: bool) -> list[LayerHeads]:
    names = {id(module): name for name, module in subject.model.named_modules()}
    row = subject.inputs.row
    with subject.using(attn):
        cache = subject.passes.cache(ForwardSpec((row[:-1],), use_cache=True)) if decode else None
        layers = subject.record_calls(
            (row[-1:],) if decode else (row,),
            lambda call: layer_heads(call, names[id(call.module)]),
            cache=cache,
            use_cache=decode,
        )
    return [layer for layer in layers if layer is not None]
