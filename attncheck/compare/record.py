"""A recorded run: the logits of a few forwards, the output of every module, sums of the weights.

A module's output is kept as a fingerprint of a few numbers per position, so that what is kept of a
large model stays small.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import final

import torch
from torch import Tensor

from attncheck.compare.calls import SHORTER, Call, quick_calls
from attncheck.core.errors import TargetError
from attncheck.diagnosis.failure import REFUSED, real_tokens
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.inputs import Tokens
from attncheck.model.padding import pad_id
from attncheck.model.subject import Subject
from attncheck.model.weights import digests
from attncheck.numerics.module_outputs import ModuleOutputs, outputs_with_floors
from attncheck.run.beginning import environment


@final
@dataclass(frozen=True)
class RecordedForward:
    """The logits and module outputs of one forward, and how far rounding moves the logits."""

    name: str
    logits_BTV: Tensor
    real_BT: Tensor
    budget: float
    outputs: ModuleOutputs


@final
@dataclass(frozen=True)
class Recording:
    """A whole run. `weights` holds four sums of every tensor, `meta` the versions and settings."""

    name: str
    rows: Tokens
    pad: int
    dtype: str
    forwards: tuple[RecordedForward, ...]
    weights: dict[str, Tensor]
    meta: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        attn, release = self.meta.get("attn"), self.meta.get("transformers")
        return f"{self.name} ({self.dtype}, {attn}, transformers {release})"


def record(
    subject: Subject,
    rows: Tokens = (),
    pad: int | None = None,
    more: Sequence[Call] = (),
) -> Recording:
    """Record a model in the three quick calls as far as it takes them, on `rows` or else on its own
    inputs, and in `more` calls without the outputs of its modules.

    Raises:
        TargetError: the rows hold tokens outside the model's vocabulary.
    """
    inputs = subject.inputs
    rows = rows or (inputs.row, inputs.other(inputs.row, salt=31)[SHORTER:])
    largest, vocab = max(map(max, rows)), subject.facts.vocab
    if largest >= vocab:
        raise TargetError(f"{subject.name}: token {largest} is outside its vocabulary of {vocab}")
    filler = pad_id(subject) if pad is None else pad
    forwards = []
    quick = [(name, spec, True) for name, spec in quick_calls(subject, rows, filler)]
    for name, spec, whole in [*quick, *((name, spec, False) for name, spec in more)]:
        with contextlib.suppress(*REFUSED):
            forwards.append(_recorded(subject, name, spec, whole))
    settings = {"attn": str(subject.attn), "dtype": subject.dtype_name}
    return Recording(
        name=subject.name,
        rows=rows,
        pad=filler,
        dtype=subject.dtype_name,
        forwards=tuple(forwards),
        weights=digests(subject.model),
        meta={**{key: str(value) for key, value in environment().items()}, **settings},
    )


def _recorded(subject: Subject, name: str, spec: ForwardSpec, whole: bool) -> RecordedForward:
    modules = {name: module for name, module in subject.model.named_modules() if name}
    shape = (len(spec.tokens), spec.length)
    logits_BTV, real_BT = subject.logits(spec), real_tokens(spec)
    outputs: ModuleOutputs = {}
    if whole:
        outputs = outputs_with_floors(modules, lambda: subject.passes.replay(spec), shape)
    if subject.settings.tp is None:
        outputs = {event: replace(each, width=0) for event, each in outputs.items()}
    return RecordedForward(
        name,
        logits_BTV.cpu(),
        torch.ones(shape, dtype=torch.bool) if real_BT is None else real_BT,
        subject.budget.value,
        outputs,
    )
