"""Every attention implementation gives the same logits.

What it checks
    The logits of eager, sdpa and flex_attention, and of flash kernels where there is a GPU, agree
    on a plain row, a left-padded batch, a 4D mask and a decode on a cache; so do the gradients. In
    each, a boolean 4D mask means the same as a float mask. `output_attentions=True`
    and training mode without dropout change nothing.

Why it matters
    The library chooses the implementation by itself. A soft-cap, a scale, sinks or a mask that one
    of them drops makes a model worse on some machines only, and no error says so.

How it measures
    The implementation in use is compared with every other one. The kernel that is called shows
    whether a switch took place, since some models keep their own without saying so. Windows,
    soft-caps and sinks take part where the config has them.

False alarms
    Agreement proves nothing about a fault that all share, which the probe `reference` finds, and
    disagreement does not say which one is right. Eager attention computes its softmax in float32:
    visible in half precision only, where precision escalation decides. Eager attention adds a
    boolean 4D mask as 0 and 1, which masks nothing: a `warn`, and a trap of the library where its
    own models do so as well.
    flex_attention compiles for seconds on a CPU: there it is compared as it is written, without a
    compiler, and as it runs where it is named in `others`.

References
    Hugging Face transformers issues 32848 (soft-cap dropped by the default implementation), 44380
    (scale flags ignored by sdpa), 48748 (no mask in sdpa).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial

import torch
from torch import Tensor

from attncheck.probing import (
    FLEX,
    ForwardSpec,
    Measurement,
    Probe,
    Subject,
    Unsupported,
    attempt,
    media_cases,
    not_switched,
    uncompiled,
    without_randomness,
)
from attncheck_probes.implementations.comparisons import COMPARED, Compared, boolean_mask
from attncheck_probes.implementations.compiled import compiled_cases

# Axes: B batch, T positions, V vocabulary, W hidden width.

EVERYWHERE = ("eager", "sdpa")
RANDOM = "dropout-active"
"""The fault that makes any two computations differ, also where only one implementation runs."""
ON_A_CPU = ("plain row", "left-padded batch")
"""What flex attention is compared in where nothing runs it fast."""
ON_A_GPU = (FLEX, "flash_attention_2", "flash_attention_3")


@dataclass(frozen=True, kw_only=True)
class Implementations(Probe):
    """Compares the implementation in use with every other one that runs."""

    name = "implementations"
    title = "all attention implementations give the same logits and gradients"
    needs = ("sees_history",)
    controls = ("softcap-missing", "sink-missing", "softmax-scale", RANDOM)

    others: tuple[str, ...] = ()

    def measure(self, subject: Subject) -> Iterator[Measurement]:
        """What must change nothing in the one in use; then every other one against it."""
        for name, same in {
            "attention weights asked for": _weights,
            "training mode without dropout": _training,
        }.items():
            yield attempt(name, same, subject, name)
        compared = 0
        for attn in self.others or _others(subject):
            reason = not_switched(subject, attn)
            compared += reason is None
            for what, measured in COMPARED.items():
                name = f"{attn} vs {subject.attn}, {what}"
                case = partial(_switched, reason=reason, measured=measured)
                yield attempt(name, case, subject, name, attn)
        if subject.device.type == "cpu" and not self.others and subject.attn != FLEX:
            why_not = cache(partial(not_switched, subject, FLEX))
            for what in ON_A_CPU:
                name = f"{FLEX} vs {subject.attn}, {what}"
                yield attempt(name, _uncompiled, subject, name, what, why_not)
        for attn in (str(subject.attn), *_others(subject)):
            name = f"boolean 4D mask, {attn}"
            yield attempt(name, boolean_mask, subject, name, attn)
        yield from media_cases.implementations(subject, _others(subject))
        yield from compiled_cases(subject)
        if not compared and {*subject.passes.injected} - {RANDOM}:
            raise Unsupported(
                "only one implementation runs: a fault in its kernel has nothing to differ from"
            )


def _others(subject: Subject) -> tuple[str, ...]:
    names = EVERYWHERE if subject.device.type == "cpu" else EVERYWHERE + ON_A_GPU
    return tuple(name for name in names if name != subject.attn)


def _switched(
    subject: Subject, name: str, attn: str, reason: str | None, measured: Compared
) -> Measurement:
    if reason is not None:
        raise Unsupported(reason)
    return measured(subject, name, attn)


def _uncompiled(
    subject: Subject, name: str, what: str, why_not: Callable[[], str | None]
) -> Measurement:
    """Flex attention as it is written: its masks and its change of scores, without a compiler."""
    with uncompiled():
        return _switched(subject, name, FLEX, why_not(), COMPARED[what])


def _weights(subject: Subject, name: str) -> Measurement:
    usual = ForwardSpec(subject.inputs.tokens)
    note = "`output_attentions=True`"
    return subject.compare_forwards(name, replace(usual, attentions=True), usual, note=note)


def _training(subject: Subject, name: str) -> Measurement:
    """Both modes with all randomness at zero, since a router's noise may be a threshold in
    evaluation.

    Skipped where training mode differs from itself: experts chosen at random are not dropout left
    on.
    """
    usual_BTV = subject.logits(ForwardSpec(subject.inputs.tokens))
    first_BTV = _without_randomness(subject, training=True)
    case = subject.compare(name, first_BTV, usual_BTV)
    if not case.beyond and not case.nonfinite:
        return case
    again_BTV, evaluated_BTV = (_without_randomness(subject, mode) for mode in (True, False))
    if not torch.equal(first_BTV, again_BTV) and RANDOM not in subject.passes.injected:
        raise Unsupported("training mode stays random with every dropout at zero")
    return subject.compare(name, again_BTV, evaluated_BTV)


def _without_randomness(subject: Subject, training: bool) -> Tensor:
    with without_randomness(subject.model, training), torch.no_grad():
        return subject.passes.call(subject.inputs.tokens, use_cache=False).logits_BTV
