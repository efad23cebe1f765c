"""The model under torch.compile against itself without: one forward, a padded batch, several tokens and one on a cache.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attncheck.errors import first_line
from attncheck.finding import Measurement, skipped
from attncheck.numerics.budget import Budget, measure_budget
from attncheck.subject.padded import pad_rows
from attncheck.subject.passes import Pass
from attncheck.subject.subject import Subject


def compiled_cases(subject: Subject) -> Iterator[Measurement]:
    """One case for each way of asking; none where nobody asked for the compiled model, or where a fault is planted.

    Both sides run in the numerics that users get: hidden float32 stays, and the budget is measured with it.
    """
    backend = subject.settings.compiled
    if backend is None or subject.passes.planted:
        return
    reason = why_not_compiled(backend, subject.device)
    if reason is not None:
        yield skipped("compiled", reason)
        return
    budget: Budget | None = None
    for what, asked in _asked(subject):
        want_BTV = _plainly(subject, asked)
        budget = budget or _budget(subject, asked, want_BTV)
        name = f"compiled ({backend}) vs not, {what}"
        try:
            with compiled(subject.model, backend):
                got_BTV = _plainly(subject, asked)
        except Exception as error:
            yield skipped(name, f"the compiled model raises {first_line(error)}")
            continue
        yield subject.compare(name, got_BTV, want_BTV, budget=budget)


def why_not_compiled(backend: str, device: torch.device) -> str | None:
    """Why nothing can be compiled here, found out by compiling a sum; None where that works."""
    try:
        torch.compile(lambda value: value + value.sin().sum(), backend=backend)(torch.ones(3, device=device))
    except Exception as error:
        return f"torch.compile ({backend}) does not work here: {first_line(error)}"
    return None


@contextlib.contextmanager
def compiled(model: nn.Module, backend: str) -> Iterator[None]:
    """The forward of a model compiled, for lengths of any size, for a while."""
    before = model.__dict__.get("forward")
    model.forward = torch.compile(model.forward, backend=backend, dynamic=True)
    try:
        yield
    finally:
        del model.forward
        if before is not None:
            model.forward = before
        torch.compiler.reset()


def _asked(subject: Subject) -> Iterator[tuple[str, Pass]]:
    tokens, length = subject.inputs.tokens, subject.inputs.length
    third = length // 3
    yield "plain row", Pass(tokens, unpromoted=True)
    if subject.can.cache is None:
        yield "decoded on a cache", Pass(tokens, chunks=(third, length - third - 2, 1, 1), unpromoted=True)
    if subject.can.reads_mask is None:
        yield "left-padded batch", replace(pad_rows(subject).asked("left", salt=1), unpromoted=True)


def _plainly(subject: Subject, asked: Pass) -> Tensor:
    """logits_BTV, run anew and not remembered; padded places count for nothing."""
    subject.passes.drop(asked)
    logits_BTV = subject.logits(asked)
    subject.passes.drop(asked)
    real: Any = getattr(asked.mask, "rows", None)
    if real is None:
        return logits_BTV
    real_BT = torch.tensor(real, dtype=torch.bool, device=logits_BTV.device)
    return logits_BTV.masked_fill(~real_BT[..., None], 0.0)


def _budget(subject: Subject, asked: Pass, want_BTV: Tensor) -> Budget:
    return measure_budget(lambda: _plainly(subject, asked), want_BTV, subject.dtype_name, contextlib.nullcontext)
