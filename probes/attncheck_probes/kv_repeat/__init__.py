"""What the KV cache stores, keeps alive and copies.

What it checks
    Each layer of the cache stores no more heads than the config has KV heads, and no head twice.
    Behind a cached tensor lies no storage beyond its own size. A decode step hands the kernel the
    shared heads, not a physical copy of the whole cache for each query head.

Why it matters
    Grouped-query attention exists to make the cache small. Storing repeated heads gives the saving
    back in memory, copying them at every step gives it back in bandwidth, and a slice that keeps a
    long prefill alive does both: outputs stay right and the bill is paid in silence.

How it measures
    Bytes per token and layer against 2 x KV heads x head width x item size. Storage bytes against
    logical bytes. Every allocation during one decode step is counted at two context lengths, inside
    the kernel and outside, for eager and sdpa.

False alarms
    Latent caches (MLA) and recurrent states do not have this form and are shown as figures. Eager
    attention repeats heads by construction: a `warn` only when eager is the implementation in use.

References
    Shazeer 2019 (multi-query attention), Ainslie et al. 2023 (GQA), DeepSeek-V2 2024 (MLA).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, final

from attncheck.probing import (
    AtMost,
    CachedTensor,
    Cause,
    Figure,
    ForwardSpec,
    Measurement,
    Probe,
    Subject,
    Unsupported,
    Verdict,
    attempt,
    key_values,
    repeated_heads,
)
from attncheck_probes.kv_repeat.allocations import decode_step, promised_heads

# Axes: B batch, H query heads, G key/value heads, S cached positions, D head width.

IMPLEMENTATIONS = ("sdpa", "eager")


@final
@dataclass(frozen=True, kw_only=True)
class KvRepeat(Probe):
    """Measures the cache and one decode step."""

    name: ClassVar[str] = "kv-repeat"
    title: ClassVar[str] = "the KV cache stores and copies shared heads once"
    needs: ClassVar[tuple[str, ...]] = ("steps",)
    controls: ClassVar[tuple[str, ...]] = ("kv-stored-repeated", "kv-repeat-copied")

    def measure(self, subject: Subject) -> Iterator[Measurement]:
        """The stored heads, the storage behind them, one decode step, and the theory beside it."""
        cache = subject.passes.cache(ForwardSpec(subject.inputs.tokens, use_cache=True))
        held = key_values(cache)
        yield attempt("heads stored per layer", _stored_heads, subject, held)
        yield attempt("stored heads that repeat another one", _repeated_heads, held)
        yield attempt("storage behind cached tensors", _storage, held)
        for attn in IMPLEMENTATIONS:
            name = f"cache copied per decode step, {attn}"
            in_use = subject.attn in (attn, None)
            yield attempt(name, _copied, subject, name, attn, in_use)
        yield attempt("bytes allocated per cached token by a decode step", _growth, subject)
        yield attempt("cache bytes per token and layer", _theory, subject, held)


def _stored_heads(subject: Subject, held: list[CachedTensor]) -> Measurement:
    heads, kv_heads = promised_heads(subject)
    if not held:
        raise Unsupported(
            "the cache holds no keys and values (recurrent states or a form of its own)"
        )
    stored = max(each.tensor.shape[1] for each in held)
    return AtMost(
        "heads stored per layer",
        float(stored),
        "heads",
        limit=float(kv_heads),
        positions=held[0].tensor.shape[2],
        note=f"{heads} query heads share {kv_heads} KV heads",
        cause=Cause("kv-stored-repeated" if stored > kv_heads else ""),
    )


def _repeated_heads(held: list[CachedTensor]) -> Measurement:
    """Heads that equal an earlier head of their layer: what grouped-query attention shares is
    stored once, in any form.
    """
    if not held:
        raise Unsupported("the cache holds no keys and values")
    repeated = [repeated_heads(each.tensor) for each in held]
    return AtMost(
        "stored heads that repeat another one",
        float(max(repeated)),
        "heads",
        positions=held[0].tensor.shape[2],
        cause=Cause("kv-stored-repeated" if max(repeated) else ""),
    )


def _storage(held: list[CachedTensor]) -> Measurement:
    if not held:
        raise Unsupported("the cache holds no keys and values")
    ratios = [each.tensor.untyped_storage().nbytes() / each.tensor.nbytes for each in held]
    return AtMost(
        "storage behind cached tensors",
        max(ratios),
        "x their own size",
        limit=1.0,
        broken=Verdict.WARN,
        positions=len(held),
        note="a cached tensor is a view that keeps a larger storage alive"
        if max(ratios) > 1
        else "",
    )


def _copied(subject: Subject, name: str, attn: str, in_use: bool) -> Measurement:
    subject.can.kernel.require()
    step = decode_step(subject, subject.inputs.length - 1, attn)
    factor = step.copied / (2 * max(1, subject.facts.layers or 1))
    return (AtMost if in_use else Figure)(
        name,
        factor,
        "x the cache",
        broken=Verdict.WARN,
        positions=subject.inputs.length,
        note=step.handed,
        cause=Cause("kv-repeat-copied" if in_use and factor else ""),
    )


def _growth(subject: Subject) -> Measurement:
    short, long = subject.inputs.length // 2, subject.inputs.length - 1
    grown = decode_step(subject, long, None).total - decode_step(subject, short, None).total
    return Figure(
        "bytes allocated per cached token by a decode step",
        grown / (long - short),
        "B",
        positions=long,
        note=f"between {short} and {long} cached tokens; a dynamic cache is written anew at every step",
    )


def _theory(subject: Subject, held: list[CachedTensor]) -> Measurement:
    heads, kv_heads = promised_heads(subject)
    if not held:
        raise Unsupported("the cache holds no keys and values")
    keys, item = held[0].tensor, held[0].tensor.element_size()
    layers = len({each.layer for each in held})
    tokens = subject.inputs.length
    bytes_now = sum(each.tensor.nbytes / each.tensor.shape[2] for each in held) / layers
    width = keys.shape[-1]
    mha, gqa, mqa = (2 * each * width * item for each in (heads, kv_heads, 1))
    return Figure(
        "cache bytes per token and layer",
        bytes_now,
        "B",
        positions=tokens,
        note=f"in theory MHA {mha}, this GQA {gqa}, MQA {mqa}",
        beside=(("in theory, MHA", mha), ("in theory, this GQA", gqa), ("in theory, MQA", mqa)),
    )
