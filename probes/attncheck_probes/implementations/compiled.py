"""The model under torch.compile against the uncompiled model: one forward, chunks on a cache, and a
padded batch.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attncheck.probing import (
    Budget,
    ForwardSpec,
    Measurement,
    Subject,
    Verdict,
    compiled,
    first_line,
    hooked,
    measure_budget,
    pad_rows,
    skipped,
    verdict_of,
    why_not_compiled,
    without_padding,
)

PLAIN = "plain row"


def compiled_cases(subject: Subject) -> Iterator[Measurement]:
    """One case for each forward; none where no backend was chosen, or where a fault is injected.

    Both sides run in the numerics that users get: hidden float32 stays, and the budget is measured
    with it. When the first case passes, a control follows: a fault that exists only in compiled
    code has to make a difference. It makes none where the comparison is blind, or where the
    compiler left the model uncompiled.
    """
    backend = subject.settings.compiled
    if backend is None or subject.passes.injected:
        return
    reason = why_not_compiled(backend, subject.device)
    if reason is not None:
        yield skipped("compiled", reason)
        return
    budget: Budget | None = None
    for what, spec in _forwards(subject).items():
        want_BTV = _run(subject, spec)
        budget = budget or _budget(subject, spec, want_BTV)
        name = f"compiled ({backend}) vs not, {what}"
        got_BTV, raised = _run_compiled(subject, spec, backend)
        if got_BTV is None:
            yield skipped(name, raised)
            continue
        case = subject.compare(name, got_BTV, want_BTV, budget=budget)
        yield case
        if what == PLAIN and verdict_of(case) in (Verdict.PASS, Verdict.NOISE):
            yield _control(subject, backend, spec, want_BTV, budget)


def _run_compiled(subject: Subject, spec: ForwardSpec, backend: str) -> tuple[Tensor | None, str]:
    """The logits of the compiled model, or what it raises: a compiler may raise anything."""
    try:
        with compiled(subject.model, backend):
            return _run(subject, spec), ""
    except Exception as error:
        return None, f"the compiled model raises {first_line(error)}"


def _control(
    subject: Subject, backend: str, spec: ForwardSpec, want_BTV: Tensor, budget: Budget
) -> Measurement:
    """The compiled model with one layer doubled where it is compiled, against the plain model."""
    name = f"compiled ({backend}) with a fault vs not, plain row"
    layer = _middle(subject, spec)
    if layer is None:
        return skipped(name, "no layer with weights of its own returns a tensor")
    with layer.register_forward_hook(_doubled_when_compiled):
        got_BTV, raised = _run_compiled(subject, spec, backend)
    if got_BTV is None:
        return skipped(name, f"{raised} with a fault injected")
    note = (
        "one layer is doubled where it is compiled: where that makes no difference, nothing was "
        "compiled, or the comparison is blind"
    )
    return subject.compare(
        name, got_BTV, want_BTV, budget=budget, expect="differ", broken=Verdict.VACUOUS, note=note
    )


def _doubled_when_compiled(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output * 2 if torch.compiler.is_compiling() else output


def _middle(subject: Subject, spec: ForwardSpec) -> nn.Module | None:
    """The middle one of the layers that ran, have weights of their own and return a tensor."""
    ran: list[nn.Module] = []

    def note(module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.is_floating_point():
            ran.append(module)

    own = [
        module
        for module in subject.model.modules()
        if any(True for _ in module.parameters(recurse=False))
    ]
    with hooked(module.register_forward_hook(note) for module in own):
        _run(subject, spec)
    return ran[len(ran) // 2] if ran else None


def _forwards(subject: Subject) -> dict[str, ForwardSpec]:
    plain, third = ForwardSpec(subject.inputs.tokens, unpromoted=True), subject.inputs.length // 3
    forwards = {PLAIN: plain}
    if subject.can.cache:
        chunks = (third, subject.inputs.length - third - 2, 1, 1)
        forwards["decoded on a cache"] = replace(plain, chunks=chunks)
    if subject.can.mask_2d:
        padded = pad_rows(subject).spec("left", salt=1)
        forwards["left-padded batch"] = replace(padded, unpromoted=True)
    return forwards


def _run(subject: Subject, spec: ForwardSpec) -> Tensor:
    """logits_BTV of a forward that really runs and is not remembered, with zeros under padding."""
    subject.passes.drop(spec)
    logits_BTV = subject.logits(spec)
    subject.passes.drop(spec)
    return without_padding(logits_BTV, spec)


def _budget(subject: Subject, spec: ForwardSpec, want_BTV: Tensor) -> Budget:
    return measure_budget(
        lambda: _run(subject, spec), want_BTV, subject.dtype_name, contextlib.nullcontext
    )
