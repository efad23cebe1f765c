"""Every attention implementation says the same.

What it checks
    The logits of eager and sdpa attention (flex_attention and the flash kernels where there is a
    GPU) agree on a plain row, a left-padded batch, a 4D mask and a decode on a cache; so do the
    gradients. A boolean 4D mask means in each what a float mask means. Asking for the attention
    weights, and training mode without dropout, change nothing.

Why it matters
    The library chooses the implementation by itself. A soft-cap, a scale, sinks or a mask that one
    of them drops makes a model worse on some machines only, and no error says so.

How it measures
    The implementation in force is compared with each other one. That a switch took place is seen
    from the kernel that is called, since some models keep their own in silence. Windows, soft-caps
    and sinks are in play where the config has them.

False alarms
    Agreement proves nothing about a fault that all share: that is for the probe `reference`; and
    disagreement does not say who is right. Eager attention computes its softmax in float32: visible
    in half precision only, where the ladder decides. Eager attention adds a boolean 4D mask as 0
    and 1, which masks nothing: a `warn`, and `fail` where eager was chosen. flex_attention compiles
    for seconds on a CPU: name it in `others` to have it compared there.

References
    Hugging Face transformers issues 32848 (soft-cap dropped by the default implementation), 44380
    (scale flags ignored by sdpa), 48748 (no mask in sdpa).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, final

import torch

from attncheck.probing import (
    ForwardSpec,
    Mask4D,
    Measurement,
    Probe,
    Subject,
    Unsupported,
    Verdict,
    attempt,
    beyond,
    blocks,
    chosen,
    merged,
    not_switched,
    pad_rows,
    switched_gradient,
    without_randomness,
)
from attncheck_probes.implementations.compiled import compiled_cases

# Axes: B batch, T positions, V vocabulary, W hidden width.

EVERYWHERE = ("eager", "sdpa")
ON_A_GPU = ("flex_attention", "flash_attention_2", "flash_attention_3")


@final
@dataclass(frozen=True, kw_only=True)
class Implementations(Probe):
    """Compares the implementation in force with every other one that runs."""

    name: ClassVar[str] = "implementations"
    title: ClassVar[str] = "all attention implementations give the same logits and gradients"
    needs: ClassVar[tuple[str, ...]] = ("sees_history",)
    controls: ClassVar[tuple[str, ...]] = (
        "softcap-missing",
        "sink-missing",
        "softmax-scale",
        "dropout-active",
    )

    others: tuple[str, ...] = ()

    def measure(self, subject: Subject) -> Iterator[Measurement]:
        """What must change nothing in the implementation in force; then each other one against it."""
        yield attempt("attention weights asked for", _weights, subject, may_refuse=True)
        yield attempt("training mode without dropout", _training, subject, may_refuse=True)
        compared = 0
        for attn in self.others or _others(subject):
            reason = not_switched(subject, attn)
            compared += reason is None
            for what, measured in COMPARED.items():
                name = f"{attn} vs {subject.attn}, {what}"
                yield attempt(name, _asked, subject, name, attn, reason, measured, may_refuse=True)
        for attn in (str(subject.attn), *_others(subject)):
            name = f"boolean 4D mask, {attn}"
            yield attempt(name, _boolean, subject, name, attn, may_refuse=True)
        yield from compiled_cases(subject)
        if not compared and subject.passes.injected:
            raise Unsupported(
                "one implementation only: a fault in its kernel has nothing to differ from"
            )


def _others(subject: Subject) -> tuple[str, ...]:
    names = EVERYWHERE if subject.device.type == "cpu" else EVERYWHERE + ON_A_GPU
    return tuple(name for name in names if name != subject.attn)


def _asked(
    subject: Subject, name: str, attn: str, reason: str | None, measured: Compared
) -> Measurement:
    if reason is not None:
        raise Unsupported(reason)
    return measured(subject, name, attn)


def _same(
    subject: Subject, name: str, attn: str, asked_of: Callable[[Subject], ForwardSpec]
) -> Measurement:
    usual = asked_of(subject)
    other = replace(usual, attn=attn)
    return subject.compare(name, subject.logits(other), subject.logits(usual), spec=(other, usual))


def _decoded(subject: Subject) -> ForwardSpec:
    subject.can.cache.require()
    half = subject.inputs.length // 2
    return ForwardSpec(subject.inputs.tokens, chunks=(half, 1, subject.inputs.length - half - 1))


def _blocked(subject: Subject) -> ForwardSpec:
    subject.can.mask_4d.require()
    half = subject.inputs.length // 2
    return ForwardSpec(subject.inputs.tokens, mask=blocks((half, subject.inputs.length - half)))


def _padded(subject: Subject, name: str, attn: str) -> Measurement:
    """Only where there are real tokens: what implementations make of padding itself is their own
    affair.
    """
    subject.can.reads_mask.require()
    batch = pad_rows(subject)
    usual = batch.spec("left", salt=1, explicit=bool(subject.can.takes_positions))
    spec = (replace(usual, attn=attn), usual)
    got_BTV, want_BTV = (subject.logits(each) for each in spec)
    cases = []
    for row, at in enumerate(batch.real("left")):
        pair = (got_BTV[row : row + 1, at], want_BTV[row : row + 1, at])
        cases.append(subject.compare(name, *pair, offset=at.start, spec=spec))
    case = merged(name, cases)
    if case.beyond and _padding_is_read(
        subject, usual, replace(usual, tokens=batch.tokens("left", salt=2))
    ):
        raise Unsupported(
            "tokens under the padding move the logits here, whatever the implementation: that is for `padding`"
        )
    return case


def _padding_is_read(subject: Subject, usual: ForwardSpec, changed: ForwardSpec) -> bool:
    """Whether other tokens under the padding move the last logits of any row."""
    changed_BV, usual_BV = (subject.logits(each)[:, -1] for each in (changed, usual))
    return beyond(changed_BV, usual_BV, subject.budget.value)


Compared = Callable[[Subject, str, str], Measurement]
COMPARED: dict[str, Compared] = {
    "plain row": partial(_same, asked_of=lambda subject: ForwardSpec(subject.inputs.tokens)),
    "left-padded batch": _padded,
    "4D mask": partial(_same, asked_of=_blocked),
    "decoded on a cache": partial(_same, asked_of=_decoded),
    "gradient": switched_gradient,
}


def _boolean(subject: Subject, name: str, attn: str) -> Measurement:
    """The same mask as booleans and as numbers to be added to the scores, in one implementation."""
    usual = replace(_blocked(subject), attn=attn)
    boolean = (
        replace(usual, mask=Mask4D(usual.mask.segments, boolean=True))
        if isinstance(usual.mask, Mask4D)
        else usual
    )
    broken = Verdict.FAIL if chosen(subject, attn) else Verdict.WARN
    note = f"forward(attention_mask=<4D booleans>) under {attn}: pass a float mask"
    return subject.compare(
        name,
        subject.logits(boolean),
        subject.logits(usual),
        broken=broken,
        note=note,
        spec=(boolean, usual),
    )


def _weights(subject: Subject) -> Measurement:
    spec, usual = (
        ForwardSpec(subject.inputs.tokens, attentions=True),
        ForwardSpec(subject.inputs.tokens),
    )
    name, note = "attention weights asked for", "`output_attentions=True`"
    return subject.compare(
        name, subject.logits(spec), subject.logits(usual), note=note, spec=(spec, usual)
    )


def _training(subject: Subject) -> Measurement:
    """Both modes with the same numbers at zero, since a router's noise may be a threshold in
    evaluation.

    Skipped where training mode differs from itself: experts chosen at random are not dropout left
    on.
    """
    logits = []
    for training in (True, True, False):
        with without_randomness(subject.model, training), torch.no_grad():
            logits.append(subject.passes.call(subject.inputs.tokens, use_cache=False).logits_BTV)
    if not torch.equal(logits[0], logits[1]):
        raise Unsupported("training mode stays random with every dropout at zero")
    return subject.compare("training mode without dropout", logits[1], logits[2])
