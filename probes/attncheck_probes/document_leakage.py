"""Two documents in one row: does the second one move when the first one changes?

What it checks
    Document A, an EOS, document B in one row. With the EOS alone B reads A. With positions that restart and a 4D mask of
    blocks, B gives the logits that it gives alone. In between: the calls that people believe to isolate.

Why it matters
    EOS is content: it isolates nothing by itself. Isolation needs a segment mask, restarted positions and a loss that does
    not cross the border. Packed fine-tuning got worse in silence wherever one of the three was missing.

How it measures
    A is replaced token by token and B's logits are compared, or B in the row is compared with B alone. Restarted positions
    without mask and cache are read as packed documents by the library: where a model's masks come from there, a leak is a
    `fail`. The same call with a 2D mask of ones, or with the cache at its default, is not read so: a leak there is a `warn`,
    since the call looks the same and does something else.

False alarms
    A leak over EOS alone is what a causal model does; it fails only under `policy: isolate`. Recurrent models carry their
    state across documents: they take no 4D mask, and their leak is a `warn`.

References
    Krell et al. 2021 (packing without cross-contamination). Hugging Face transformers issues 39194, 39997, 46634; trl 1230.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, final

import torch

from attncheck.errors import Unsupported
from attncheck.finding import Evidence, Expectation, Measurement, Ruling, Verdict
from attncheck.probe import Cost, attempt, judge_cases
from attncheck.subject.inputs import Row
from attncheck.subject.passes import Mask, Pass, Positions, all_ones, blocks, counting
from attncheck.subject.subject import Subject

# Axes: B batch, T positions, V vocabulary.


@final
@dataclass(frozen=True)
class _Packed:
    """A row of two documents: everything before `start` is A with its EOS, the rest is B."""

    row: Row
    start: int

    @property
    def restarting(self) -> Positions:
        return (tuple(range(self.start)) + tuple(range(len(self.row) - self.start)),)

    @property
    def alone(self) -> Row:
        return self.row[self.start :]


@final
@dataclass(frozen=True, kw_only=True)
class DocumentLeakage:
    """Packs two documents and watches the second."""

    name: ClassVar[str] = "document-leakage"
    title: ClassVar[str] = "a packed document does not read the one before it"
    cost: ClassVar[Cost] = "cheap"
    needs: ClassVar[tuple[str, ...]] = (
        "decodes",
        "sees_history",
    )
    controls: ClassVar[tuple[str, ...]] = ("document-leak", "causal-mask-missing")

    policy: Literal["allow", "isolate"] = "allow"

    def measure(self, subject: Subject) -> Iterator[Measurement]:
        """From the call that must isolate to the one that cannot."""
        packed = _pack(subject)
        family = subject.can.packs is None
        call = partial(self._isolated, subject, packed)
        yield attempt("4D block mask, restarted positions", lambda: self._blocked(subject, packed))
        yield call("restarted positions, no mask, cache off", False, None, Verdict.FAIL if family else Verdict.WARN)
        yield call("restarted positions, no mask, default cache", None, None, Verdict.WARN)
        yield call("restarted positions, 2D mask of ones, cache off", False, all_ones((packed.row,)), Verdict.WARN)
        yield self._over_eos(subject, packed)
        yield attempt("loss across the border", lambda: _border_loss(subject, packed))

    def judge(self, evidence: Evidence) -> Ruling:
        """The worst case decides."""
        return judge_cases(evidence)

    def _blocked(self, subject: Subject, packed: _Packed) -> Measurement:
        if subject.can.mask_4d or subject.can.takes_positions:
            raise Unsupported(str(subject.can.mask_4d or subject.can.takes_positions))
        mask = blocks((packed.start, len(packed.alone)))
        together = Pass((packed.row,), positions=packed.restarting, mask=mask)
        alone = Pass((packed.alone,), positions=counting(1, len(packed.alone)), mask=blocks((len(packed.alone),)))
        return subject.compare(
            "4D block mask, restarted positions",
            subject.logits(together)[:, packed.start :],
            subject.logits(alone),
            offset=packed.start,
            asked=(together, alone),
        )

    def _isolated(
        self, subject: Subject, packed: _Packed, name: str, use_cache: bool | None, mask: Mask, broken: Verdict
    ) -> Measurement:
        def measured() -> Measurement:
            if subject.can.reads_positions or (mask and subject.can.mask_2d):
                raise Unsupported(str(subject.can.reads_positions or subject.can.mask_2d))
            return self._moved(subject, packed, name, use_cache, mask, broken, packed.restarting, "equal")

        return attempt(name, measured)

    def _over_eos(self, subject: Subject, packed: _Packed) -> Measurement:
        expect: Expectation = "equal" if self.policy == "isolate" else "figure"
        name = "EOS alone" if subject.inputs.eos is not None else "no EOS known, a plain token instead"
        return self._moved(subject, packed, name, False, None, Verdict.FAIL, None, expect)

    def _moved(
        self,
        subject: Subject,
        packed: _Packed,
        name: str,
        use_cache: bool | None,
        mask: Mask,
        broken: Verdict,
        positions: Positions | None,
        expect: Expectation,
    ) -> Measurement:
        changed = subject.inputs.other(packed.row, 0, packed.start - 1, salt=5)
        asked = Pass((packed.row,), positions=positions, mask=mask, use_cache=use_cache)
        other = Pass((changed,), positions=positions, mask=mask, use_cache=use_cache)
        return subject.compare(
            name,
            subject.logits(other)[:, packed.start :],
            subject.logits(asked)[:, packed.start :],
            expect=expect,
            broken=broken,
            offset=packed.start,
            note="document B moves with document A",
            asked=(other, asked),
        )


def _pack(subject: Subject) -> _Packed:
    inputs = subject.inputs
    middle = inputs.length // 2
    eos = inputs.eos if inputs.eos is not None else inputs.row[middle - 1]
    return _Packed((*inputs.row[: middle - 1], eos, *inputs.row[middle:]), middle)


def _border_loss(subject: Subject, packed: _Packed) -> Measurement:
    """Whether masking the label of B's first token changes the loss: then it is trained from A's last position."""
    ids_BT = subject.passes.ids((packed.row,))
    masked_BT = ids_BT.clone()
    masked_BT[:, packed.start] = -100
    with torch.no_grad():
        calls = [subject.passes.call((packed.row,), use_cache=False, extra={"labels": each}) for each in (ids_BT, masked_BT)]
    losses = [reply.output.loss for reply in calls]
    if losses[0] is None:
        raise Unsupported("the model computes no loss from `labels`")
    change = abs(float(losses[0] - losses[1]))
    return Measurement(
        name="loss across the border",
        expect="figure",
        value=change,
        unit="nats",
        positions=1,
        nonfinite=sum(not bool(torch.isfinite(loss)) for loss in losses),
        note="B's first token is trained from A's last position unless its label is -100",
    )
