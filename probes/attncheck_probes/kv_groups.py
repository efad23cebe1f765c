"""Which query heads answer to which KV head.

What it checks
    In every layer, query head h reads KV head h // (heads / kv_heads): neighbouring query heads
    share a KV head. With one KV head for each query head the map is the identity; with a single one
    all heads read it. The map is reported.

Why it matters
    `repeat` instead of `repeat_interleave`, or a reshape in the wrong order, deals the heads out in
    turn. Shapes and norms stay as they were, and a converted checkpoint speaks nonsense.

How it measures
    At the attention kernel, during a forward: the same call is made again with some KV heads
    disturbed, and the query heads that move by anything are the ones that read them. Heads are
    disturbed in the pattern of the binary digits of their numbers, keys and values apart, so that a
    layer takes a few kernel calls. At once and in a decode step, in each implementation. Where the
    kernel is handed repeated heads already, heads with identical keys show the groups.

False alarms
    Models that pass no scores through a softmax are skipped. Latent attention (MLA) hands over one
    key for each query head: the identity. A model that repeats its keys by itself may deal them out
    in turn on purpose, with weights stored so (JetMoE, where each expert brings a head for every KV
    head): a `warn`, where every layer does.

References
    Ainslie et al. 2023 (GQA). llama.cpp issue 2376, TinyLlama issue 24 (heads un-permuted with the
    wrong number of heads).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor

from attncheck.probing import (
    AtMost,
    AttentionCall,
    Cause,
    ForwardSpec,
    Measurement,
    Probe,
    Subject,
    Unsupported,
    Verdict,
    attempt,
)

# Axes: B batch, H query heads, G key/value heads, T query positions, S key positions, D head width.

IMPLEMENTATIONS = ("sdpa", "eager")
DISTURB = -1.5
NOTHING = -1

HeadMap = tuple[int, ...]
"""For each query head, the KV head that it answers to; NOTHING where keys and values disagree."""


@final
@dataclass(frozen=True)
class _Layer:
    """What one layer's kernel does: the map it has, the one it should have, and whether the model
    repeats keys by itself.
    """

    module: str
    found: HeadMap
    expected: HeadMap
    repeated: bool

    @property
    def wrong(self) -> int:
        return sum(
            found != expected for found, expected in zip(self.found, self.expected, strict=True)
        )


@final
@dataclass(frozen=True, kw_only=True)
class KvGroups(Probe):
    """Disturbs KV heads and watches the query heads."""

    name: ClassVar[str] = "kv-groups"
    title: ClassVar[str] = "query heads read the KV head of their own group"
    needs: ClassVar[tuple[str, ...]] = ("watch",)
    controls: ClassVar[tuple[str, ...]] = ("kv-groups-tiled",)

    def measure(self, subject: Subject) -> Iterator[Measurement]:
        """The implementation in use first, at once and in a decode step."""
        for attn in (None, *(each for each in IMPLEMENTATIONS if each != subject.attn)):
            for decode in (False, True):
                name = f"{'decode' if decode else 'prefill'}, {attn or subject.attn}"
                yield attempt(name, _case, subject, name, attn, decode)


def _case(subject: Subject, name: str, attn: str | None, decode: bool) -> Measurement:
    if decode:
        subject.can.steps.require()
    layers = _watched(subject, attn, decode)
    if not layers:
        raise Unsupported("no layer hands its kernel heads that can be told apart")
    wrong = [layer for layer in layers if layer.wrong]
    shown = (wrong or layers)[0]
    designed = len(wrong) == len(layers) and all(layer.repeated for layer in wrong)
    tiled = bool(wrong) and all(layer.found == _tiled(layer.expected) for layer in wrong)
    return AtMost(
        name,
        float(sum(layer.wrong for layer in layers)),
        "query heads answer to a KV head of another group",
        broken=Verdict.WARN if designed else Verdict.FAIL,
        positions=sum(len(layer.found) for layer in layers),
        note=f"{shown.module}: {_in_words(shown.found)}",
        cause=Cause(
            "kv-groups-tiled" if tiled else "",
            0.0 if tiled else None,
            shown.module if wrong else "",
        ),
    )


def _watched(subject: Subject, attn: str | None, decode: bool) -> list[_Layer]:
    names = {id(module): name for name, module in subject.model.named_modules()}
    row = subject.inputs.row
    with subject.using(attn):
        cache = subject.passes.cache(ForwardSpec((row[:-1],), use_cache=True)) if decode else None
        layers = subject.record_calls(
            (row[-1:],) if decode else (row,),
            lambda call: _layer(call, names[id(call.module)]),
            cache=cache,
            use_cache=decode,
        )
    return [layer for layer in layers if layer is not None]


def _layer(call: AttentionCall, name: str) -> _Layer | None:
    """None where the kernel's output has no axis of heads, or its heads do not divide."""
    output = call.run()[0]
    heads, held = call.query_BHTD.shape[1], call.key_BGSD.shape[1]
    shaped = isinstance(output, Tensor) and output.ndim == 4 and output.shape[2] == heads
    if not shaped or heads % held:
        return None
    expected = tuple(head // (heads // held) for head in range(heads))
    return _Layer(name, *_unrepeated(call, _map(call, output), expected))


def _map(call: AttentionCall, usual_BTHD: Tensor) -> HeadMap:
    """Read the number of the KV head behind each query head, one binary digit (of the number plus
    one) a kernel call.
    """
    held = call.key_BGSD.shape[1]
    numbers: list[HeadMap] = []
    for part in ("value_BGSD", "key_BGSD"):
        code_H = torch.zeros(call.query_BHTD.shape[1], dtype=torch.long)
        for digit in range(held.bit_length()):
            moved_BTHD = _disturbed(call, part, [g for g in range(held) if (g + 1) >> digit & 1])
            same_BTHD = (moved_BTHD == usual_BTHD) | (moved_BTHD.isnan() & usual_BTHD.isnan())
            code_H += (~same_BTHD).flatten(0, 1).any(0).any(-1).cpu().long() << digit
        numbers.append(tuple(int(code) - 1 for code in code_H))
    # a query that may read one key only does not move with it: then the values alone tell
    return tuple(
        value if key in (value, NOTHING) else NOTHING for value, key in zip(*numbers, strict=True)
    )


def _disturbed(call: AttentionCall, part: str, heads: list[int]) -> Tensor:
    changed_BGSD = getattr(call, part).clone()
    changed_BGSD[:, heads] *= DISTURB
    output_BTHD: Tensor = replace(call, **{part: changed_BGSD}).run()[0]
    return output_BTHD


def _unrepeated(
    call: AttentionCall, found: HeadMap, expected: HeadMap
) -> tuple[HeadMap, HeadMap, bool]:
    """Where the kernel is handed repeated keys, which the third value says: the first head with the
    same keys is the group.
    """
    keys = call.key_BGSD.unbind(1)
    if len(keys) < len(found):
        return found, expected, False
    first = tuple(
        next(h for h, other in enumerate(keys) if torch.equal(other, key)) for key in keys
    )
    size = len(first) // len(set(first))
    return (
        (found, expected, False)
        if size == 1
        else (first, tuple(head - head % size for head in range(len(first))), True)
    )


def _tiled(expected: HeadMap) -> HeadMap:
    return tuple(head % len(set(expected)) for head in range(len(expected)))


def _in_words(found: HeadMap) -> str:
    """0, 0, 1, 1 as `query heads 0 1 -> KV 0, 2 3 -> KV 1`."""
    groups = {
        held: [head for head, read in enumerate(found) if read == held]
        for held in dict.fromkeys(found)
    }
    return "query heads " + ", ".join(
        f"{' '.join(map(str, heads))} -> {f'KV {held}' if held != NOTHING else 'no single KV head'}"
        for held, heads in groups.items()
    )
