"""Rounding or a fault: the same comparison in every precision, and where greedy text diverges.

Rounding shrinks by orders of magnitude from bfloat16 to float64; a fault does not.

Axes: B batch, T positions, N generated tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attncheck.core.settings import PRECISIONS, Settings
from attncheck.model.forward_spec import ForwardSpec
from attncheck.model.generation import greedy
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
"""From this many parameters on, float32 comes first, and float64 only where float32 is in doubt."""
SHOWN = ("bfloat16", "float32", "float64")


def opened(target: str, settings: Settings) -> tuple[Subject, str]:
    """The subject in the precision that decides, and the precision that the reporter uses.

    Raises:
        TargetError: the target cannot be loaded.
    """
    subject = load(target, replace(settings, dtype="auto"))
    reported = settings.dtype if settings.dtype != "auto" else _stated(subject)
    slow = subject.facts.parameters > SLOW
    if slow and subject.dtype_name == "float64" and reported != "float64":
        return subject.cast(USUAL), reported
    return subject, reported


def _stated(subject: Subject) -> str:
    """The dtype of the checkpoint according to the config."""
    config: Any = subject.config
    stated = getattr(config, "dtype", None) or getattr(config, "torch_dtype", None)
    usual = str(stated).removeprefix("torch.") if isinstance(stated, str) else USUAL
    return NAMES.get(stated, usual)  # type: ignore[arg-type]


def precisions(
    subject: Subject, material: Material, patterns: Sequence[CallPattern], reported: str
) -> Iterator[PrecisionLine]:
    """One line per precision that fits into memory, coarse to fine, the reporter's among them."""
    for dtype in (name for name in PRECISIONS if name in (*SHOWN, reported)):
        if not fits(subject.model, DTYPES[dtype], subject.device):
            continue
        try:
            with subject.at(dtype) as view:
                line = _line(view, material, patterns, dtype)
        except (RuntimeError, NotImplementedError, TypeError):
            continue  # quantized weights and some kernels refuse another precision
        if line is not None:
            yield line


def _line(
    subject: Subject, material: Material, patterns: Sequence[CallPattern], dtype: str
) -> PrecisionLine | None:
    """The pattern that moves the logits most, or that flips the most best tokens."""
    cases = [case for _, case in axes.measured(subject, material, patterns)]
    if not cases:
        return None
    worst = max(cases, key=lambda case: case.max_abs)
    most = max(cases, key=lambda case: case.divergence.top1_flips or 0)
    shown = most if most.divergence.top1_flips else worst
    return PrecisionLine(
        dtype=dtype,
        way=shown.name,
        max_abs=worst.max_abs,
        budget=worst.budget,
        flips=shown.divergence.top1_flips or 0,
        positions=shown.positions,
    )


def greedy_split(
    subject: Subject, material: Material, tokens: int
) -> tuple[GreedySplit | None, Material]:
    """Where greedy generation and a forward over its result first choose another token.

    Also the material with the generated text: text has the near ties that random ids hide.

    Raises:
        Unsupported: the model has no generate(), or it raises.
    """
    row = material.rows[0]
    generated = greedy(subject, row, tokens)
    text = replace(material, rows=(row + generated.tokens, *material.rows[1:]))
    full_NV = subject.logits(ForwardSpec(text.rows[:1]))[0, len(row) - 1 : -1]
    forced_NV = generated.logits_BNV[0].to(full_NV.device)
    chosen_N = torch.tensor(generated.tokens, device=full_NV.device)
    flipped_N = (full_NV.argmax(-1) != chosen_N).nonzero().flatten()
    if not len(flipped_N):
        return None, text
    split = _split(subject.tokenizer, full_NV, forced_NV, int(flipped_N[0]))
    return replace(split, position=len(row) + split.position, flips=len(flipped_N)), text


def _split(tokenizer: Any, full_NV: Tensor, forced_NV: Tensor, at: int) -> GreedySplit:
    other, chosen = int(full_NV[at].argmax()), int(forced_NV[at].argmax())
    return GreedySplit(
        position=at,
        chosen=_shown(tokenizer, chosen),
        other=_shown(tokenizer, other),
        margin=float(full_NV[at, other] - full_NV[at, chosen]),
        difference=max_abs_diff(full_NV[at], forced_NV[at]),
        flips=1,
        tokens=len(full_NV),
    )


def _shown(tokenizer: Any, token: int) -> str:
    return repr(tokenizer.decode([token])) if tokenizer is not None else f"token {token}"
