"""Several documents in one row: does one of them move when the one before it changes?

What it checks
    Rows of three documents of unequal lengths, an EOS at the end of each. With the EOS alone a
    document reads the ones before it. With positions that restart and a 4D mask of blocks, it gives
    the logits that it gives alone, in each of two rows whose documents meet at other places. In
    between: the calls that users believe to isolate.

Why it matters
    EOS is content: it isolates nothing by itself. Isolation needs a segment mask, restarted
    positions and a loss that does not cross the boundary. Packed fine-tuning got worse in silence
    wherever one of the three was missing.

How it measures
    A document is replaced token by token and the logits of those behind it are compared: the first
    document of one row and the second of another, so that no boundary is overlooked. Or a
    document in its row is compared with itself alone. Restarted positions without mask and cache
    are read as packed documents by the library: where a model's masks come from there, a leak is a
    `fail`. The same call with a 2D mask of ones, or with the cache at its default, is not read so:
    a leak there is a `warn`, since the call looks the same and does something else.

False alarms
    A leak over EOS alone is what a causal model does; it fails only under `policy: isolate`.
    Recurrent models carry their state across documents: they take no 4D mask, and their leak is a
    `warn`. Where the masks of a model's own code are the same for restarted positions as for others
    in every layer, nothing in it separates documents: no such call is asked.

References
    Krell et al. 2021 (packing without cross-contamination). Hugging Face transformers issues 39194,
    39997, 46634; trl 1230.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch

from attncheck.probing import (
    Figure,
    ForwardSpec,
    Measurement,
    Probe,
    Subject,
    Unsupported,
    Verdict,
    all_ones,
    attempt,
    chosen,
    require_one_code,
)
from attncheck_probes.document_leakage.packed_rows import Packed, blocked, isolated, pack
from attncheck_probes.document_leakage.separation import require_separation

# Axes: B batch, T positions, V vocabulary.


BLOCKED = "4D block mask, restarted positions"


@dataclass(frozen=True, kw_only=True)
class DocumentLeakage(Probe):
    """Packs documents into rows and watches those that have another one before them."""

    name = "document-leakage"
    title = "a packed document does not read the one before it"
    needs = ("decodes", "sees_history")
    controls = ("document-leak", "causal-mask-missing")

    policy: Literal["allow", "isolate"] = "allow"

    def measure(self, subject: Subject) -> Iterator[Measurement]:
        """From the call that must isolate to the one that cannot."""
        packed = pack(subject.inputs)
        yield attempt(BLOCKED, _blocked, subject, packed)
        strict = Verdict.FAIL if subject.can.packs else Verdict.WARN
        first, warn, usual = packed.first, Verdict.WARN, ForwardSpec(())
        masked = replace(usual, mask=all_ones(first.rows))
        calls = {
            "no mask, cache off": (packed, usual, strict),
            "no mask, default cache": (first, replace(usual, use_cache=None), warn),
            "2D mask of ones, cache off": (first, masked, warn),
        }
        for how, call in calls.items():
            name = f"restarted positions, {how}"
            yield attempt(name, self._isolated, subject, name, *call)
        if chosen("EOS alone"):
            yield self._over_eos(subject, first)
        yield attempt("loss across the border", _boundary_loss, subject, first)

    def _isolated(
        self, subject: Subject, name: str, packed: Packed, call: ForwardSpec, broken: Verdict
    ) -> Measurement:
        subject.can.reads_positions.require()
        if call.mask:
            subject.can.mask_2d.require()
        case = isolated(subject, packed, name, call, broken)
        if case.beyond and self.policy == "allow":
            require_separation(subject, packed.first)
        return case

    def _over_eos(self, subject: Subject, packed: Packed) -> Measurement:
        """The first document replaced up to its EOS; nothing else separates the documents."""
        known = subject.inputs.eos is not None
        start, usual = packed.boundaries[0][1], ForwardSpec(packed.rows)
        changed = subject.inputs.other(packed.rows[0], 0, start - 1, salt=5)
        return subject.compare_forwards(
            "EOS alone" if known else "no EOS known, a plain token instead",
            ForwardSpec((changed,)),
            usual,
            at=slice(start, None),
            expect="equal" if self.policy == "isolate" else "figure",
            note="the second document moves with the first",
        )


def _blocked(subject: Subject, packed: Packed) -> Measurement:
    (subject.can.mask_4d & subject.can.takes_positions).require()
    return blocked(subject, packed, BLOCKED)


def _boundary_loss(subject: Subject, packed: Packed) -> Measurement:
    """How much the loss changes when the label of the second document's first token is masked: the
    end of the first document trains it.
    """
    require_one_code(subject)
    ids_BT = subject.passes.ids(packed.rows)
    masked_BT = ids_BT.clone()
    masked_BT[:, packed.boundaries[0][1]] = -100
    with torch.no_grad():
        calls = [
            subject.passes.call(packed.rows, use_cache=False, extra={"labels": each})
            for each in (ids_BT, masked_BT)
        ]
    found = (getattr(reply.output, "loss", None) for reply in calls)
    losses = [loss for loss in found if loss is not None]
    if len(losses) < len(calls):
        raise Unsupported("the model computes no loss from `labels`")
    change = abs(float(losses[0] - losses[1]))
    return Figure(
        "loss across the border",
        change,
        "nats",
        nonfinite=sum(not bool(torch.isfinite(loss)) for loss in losses),
        note="the end of a document trains the next one's first token unless its label is -100",
    )
