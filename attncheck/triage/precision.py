"""Rounding or not: the same comparison in every precision, and where a greedy text turns.

Rounding shrinks by orders of magnitude from bfloat16 to float64; a fault does not move.

Axes: B batch, T positions, N generated tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attncheck.core.errors import Unsupported
from attncheck.core.finding import Measurement
from attncheck.core.settings import LADDER, Settings
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.generation import greedy
from attncheck.model.passes import REFUSALS
from attncheck.model.precision import DTYPES, NAMES, fits
from attncheck.model.subject import Subject
from attncheck.numerics.divergence import max_abs_diff
from attncheck.targets.load import load
from attncheck.triage import axes
from attncheck.triage.answer import GreedySplit, PrecisionLine
from attncheck.triage.call_pattern import CallPattern
from attncheck.triage.material import Material

USUAL = "float32"
SLOW = 30_000_000
"""From this many parameters on, float32 is asked first and float64 only where float32 leaves a
doubt.
"""
SHOWN = ("bfloat16", "float32", "float64")


def opened(target: str, settings: Settings) -> tuple[Subject, str]:
    """The subject in the precision that decides, and the reporter's: what they asked for, else the
    checkpoint's own.

    Raises:
        TargetError: the target cannot be loaded.
    """
    subject = load(target, replace(settings, dtype="auto"))
    own = settings.dtype if settings.dtype != "auto" else _own(subject)
    if subject.facts.parameters > SLOW and subject.dtype_name == "float64" and own != "float64":
        return subject.cast(USUAL), own
    return subject, own


def _own(subject: Subject) -> str:
    """The dtype that the config says the checkpoint is in."""
    said: Any = getattr(subject.config, "dtype", None) or getattr(
        subject.config, "torch_dtype", None
    )
    return NAMES.get(said, str(said).removeprefix("torch.") if isinstance(said, str) else USUAL)


def dtypes(subject: Subject, reported: str) -> list[str]:
    """The precisions to show, coarse to fine: the reporter's own among them, as far as memory goes."""
    wanted = [name for name in LADDER if name in (*SHOWN, reported)]
    return [name for name in wanted if fits(subject.model, DTYPES[name], subject.device)]


def ladder(
    subject: Subject, material: Material, patterns: Sequence[CallPattern], reported: str
) -> Iterator[PrecisionLine]:
    """One line a precision: of all patterns the one that moves the logits most."""
    for dtype in dtypes(subject, reported):
        try:
            with subject.at(dtype) as view:
                line = _line(view, material, patterns, dtype)
        except (RuntimeError, NotImplementedError, TypeError):
            continue  # quantised weights and some kernels refuse another precision
        if line is not None:
            yield line


def _line(
    subject: Subject, material: Material, patterns: Iterable[CallPattern], dtype: str
) -> PrecisionLine | None:
    cases = list(_measured(subject, material, patterns))
    if not cases:
        return None
    worst = max(cases, key=lambda case: case.max_abs or 0.0)
    most = max(cases, key=lambda case: case.top1_flips or 0)
    shown = most if most.top1_flips else worst
    return PrecisionLine(
        dtype=dtype,
        way=shown.name,
        max_abs=worst.max_abs or 0.0,
        budget=worst.budget or 0.0,
        flips=shown.top1_flips or 0,
        positions=shown.positions,
    )


def _measured(
    subject: Subject, material: Material, patterns: Iterable[CallPattern]
) -> Iterator[Measurement]:
    for pattern in patterns:
        try:
            yield axes.measure(subject, material, pattern)
        except (Unsupported, *REFUSALS):
            continue


def split(subject: Subject, material: Material, tokens: int) -> GreedySplit | None:
    """Greedy generation against forwards over what it returned: where they first choose another
    token.

    None where they never do. Runs in the present precision.

    Raises:
        Unsupported: the model has no generate(), or it raises.
    """
    row = material.rows[0]
    made = greedy(subject, row, tokens)
    full_NV = subject.logits(ForwardSpec((row + made.tokens,)))[0, len(row) - 1 : -1]
    forced_NV = made.logits_BNV[0].to(full_NV.device)
    chosen_N = torch.tensor(made.tokens, device=full_NV.device)
    turned_N = (full_NV.argmax(-1) != chosen_N).nonzero().flatten()
    if not len(turned_N):
        return None
    at = int(turned_N[0])
    return _split(subject.tokenizer, full_NV, forced_NV, at, len(row), len(turned_N))


def _split(
    tokenizer: Any, full_NV: Tensor, forced_NV: Tensor, at: int, start: int, flips: int
) -> GreedySplit:
    two = full_NV[at].float().topk(2)
    other, chosen = int(two.indices[0]), int(forced_NV[at].argmax())
    return GreedySplit(
        position=start + at,
        chosen=_shown(tokenizer, chosen),
        other=_shown(tokenizer, other),
        margin=float(full_NV[at, other] - full_NV[at, chosen]),
        difference=max_abs_diff(full_NV[at], forced_NV[at]),
        flips=flips,
        tokens=len(full_NV),
    )


def _shown(tokenizer: Any, token: int) -> str:
    return repr(tokenizer.decode([token])) if tokenizer is not None else f"token {token}"


def generated_rows(subject: Subject, material: Material, tokens: int) -> Material:
    """The first row with what the model itself goes on with: text, where random ids would hide near
    ties.
    """
    row = material.rows[0]
    made = greedy(subject, row, tokens)
    return replace(material, rows=(row + made.tokens, *material.rows[1:]))
