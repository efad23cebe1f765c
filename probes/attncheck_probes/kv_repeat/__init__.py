"""What the KV cache stores, keeps alive and copies.

What it checks
    Each layer of the cache stores no more heads than the config has KV heads, and no head twice.
    Behind a cached tensor lies no storage beyond its own size. In a decode step the kernel gets the
    shared heads, not a physical copy of the whole cache for each query head.

Why it matters
    Grouped-query attention exists to make the cache small. Storing repeated heads gives the saving
    back in memory, copying them at every step gives it back in bandwidth, and a slice that keeps a
    long prefill alive does both: the output stays right, and nobody notices the cost.

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
from dataclasses import dataclass, replace

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
    repeated_heads,
)
from attncheck_probes.kv_repeat.allocations import decode_step, expected_heads
from attncheck_probes.kv_repeat.moved import kept_alive, stored_of, stored_of_moved_projections

IMPLEMENTATIONS = ("sdpa", "eager")
Stored = list[CachedTensor]


@dataclass(frozen=True, kw_only=True)
class KvRepeat(Probe):
    """Measures the cache and one decode step."""

    name = "kv-repeat"
    title = "the KV cache stores and copies shared heads once"
    needs = ("steps",)
    controls = ("kv-stored-repeated", "kv-repeat-copied")

    def measure(self, subject: Subject) -> Iterator[Measurement]:
        """The stored heads, the storage behind them, one decode step, and the theory beside it."""
        cache = subject.passes.cache(ForwardSpec(subject.inputs.tokens, use_cache=True))
        stored = stored_of(subject, cache)
        for name, measured in {
            "heads stored per layer": _stored_heads,
            "stored heads that repeat another one": _repeated_heads,
            "storage behind cached tensors": _storage,
        }.items():
            yield attempt(name, measured, subject, name, stored)
        for attn in IMPLEMENTATIONS:
            name = f"cache copied per decode step, {attn}"
            yield attempt(name, _copied, subject, name, attn)
        name = "bytes allocated per cached token by a decode step"
        yield attempt(name, _growth, subject, name)
        name = "cache bytes per token and layer"
        yield attempt(name, _theory, subject, name, stored)


def _require(stored: Stored) -> None:
    if not stored:
        raise Unsupported(
            "the cache holds no keys and values (recurrent states or a form of its own)"
        )


def _stored_heads(subject: Subject, name: str, stored: Stored) -> Measurement:
    heads, kv_heads = expected_heads(subject)
    _require(stored)
    found = max(each.tensor.shape[1] for each in stored)
    return AtMost(
        name,
        float(found),
        "heads",
        limit=float(kv_heads),
        positions=stored[0].tensor.shape[2],
        note=f"{heads} query heads share {kv_heads} KV heads",
        cause=Cause("kv-stored-repeated" if found > kv_heads else ""),
    )


def _repeated_heads(subject: Subject, name: str, stored: Stored) -> Measurement:
    """Heads that equal an earlier head of their layer: grouped-query attention stores what heads
    share once, in any form. Weights that give equal heads are no fault of the cache: then heads
    differ once the projections do.
    """
    _require(stored)
    most, positions, note = _most(stored), stored[0].tensor.shape[2], ""
    if most:
        moved = _most(stored_of_moved_projections(subject))
        note = "" if moved else f"the weights give {most} heads the keys or values of another one"
        most = min(most, moved)
    cause = Cause("kv-stored-repeated" if most else "")
    return AtMost(name, float(most), "heads", positions=positions, note=note, cause=cause)


def _most(stored: Stored) -> int:
    return max((repeated_heads(each.tensor) for each in stored), default=0)


def _storage(subject: Subject, name: str, stored: Stored) -> Measurement:
    """What a prompt keeps alive behind the cache, or one more token where that is less."""
    _require(stored)
    ratio, note = kept_alive(stored), ""
    if ratio > 1:
        note = "a cached tensor is a view that keeps a larger storage alive"
        spec = ForwardSpec(subject.inputs.tokens, chunks=(subject.inputs.length - 1, 1))
        later = kept_alive(stored_of(subject, subject.passes.cache(replace(spec, use_cache=True))))
        if later <= 1:
            ratio, note = later, f"{note}: {ratio:.3g} x its own size until a token is added"
    return AtMost(
        name,
        ratio,
        "x their own size",
        limit=1.0,
        broken=Verdict.WARN,
        positions=len(stored),
        note=note,
    )


def _copied(subject: Subject, name: str, attn: str) -> Measurement:
    subject.can.kernel.require()
    step = decode_step(subject, subject.inputs.length - 1, attn)
    factor, length = step.copied / (2 * max(1, subject.facts.layers or 1)), subject.inputs.length
    in_use = subject.attn in (attn, None)
    return (AtMost if in_use else Figure)(
        name,
        factor,
        "x the cache",
        broken=Verdict.WARN,
        positions=length,
        note=step.received,
        cause=Cause("kv-repeat-copied" if in_use and factor else ""),
    )


def _growth(subject: Subject, name: str) -> Measurement:
    short, long = subject.inputs.length // 2, subject.inputs.length - 1
    bytes_short, bytes_long = (decode_step(subject, each, None).total for each in (short, long))
    note = f"between {short} and {long} cached tokens; a dynamic cache is rewritten at every step"
    rate = (bytes_long - bytes_short) / (long - short)
    return Figure(name, rate, "B", positions=long, note=note)


def _theory(subject: Subject, name: str, stored: Stored) -> Measurement:
    heads, kv_heads = expected_heads(subject)
    _require(stored)
    keys, layers = stored[0].tensor, len({each.layer for each in stored})
    actual = sum(each.tensor.nbytes / each.tensor.shape[2] for each in stored) / layers
    mha, gqa, mqa = (2 * n * keys.shape[-1] * keys.element_size() for n in (heads, kv_heads, 1))
    return Figure(
        name,
        actual,
        "B",
        positions=subject.inputs.length,
        note=f"in theory MHA {mha}, this GQA {gqa}, MQA {mqa}",
        beside=(("in theory, MHA", mha), ("in theory, this GQA", gqa), ("in theory, MQA", mqa)),
    )
