"""The model under torch.compile against itself without: one forward, a padded batch, several tokens
and one on a cache.

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
    first_line,
    hooked,
    measure_budget,
    pad_rows,
    skipped,
    verdict_of,
    without_padding,
)


def compiled_cases(subject: Subject) -> Iterator[Measurement]:
    """One case for each way of asking; none where nobody asked for the compiled model, or where a
    fault is planted.

    Both sides run in the numerics that users get: hidden float32 stays, and the budget is measured
    with it. When the first way holds, it is run again with a fault that shows only where the model
    is compiled, and has to differ: it does not where the comparison is blind, or where the compiler
    left the model as it is.
    """
    backend = subject.settings.compiled
    if backend is None or subject.passes.injected:
        return
    reason = why_not_compiled(backend, subject.device)
    if reason is not None:
        yield skipped("compiled", reason)
        return
    budget: Budget | None = None
    for what, spec in _asked(subject):
        want_BTV = _plainly(subject, spec)
        budget = budget or _budget(subject, spec, want_BTV)
        name = f"compiled ({backend}) vs not, {what}"
        try:
            with compiled(subject.model, backend):
                got_BTV = _plainly(subject, spec)
        except Exception as error:
            yield skipped(name, f"the compiled model raises {first_line(error)}")
            continue
        case = subject.compare(name, got_BTV, want_BTV, budget=budget)
        yield case
        if spec == ForwardSpec(subject.inputs.tokens, unpromoted=True) and verdict_of(case) in (
            Verdict.PASS,
            Verdict.NOISE,
        ):
            yield _control(subject, backend, spec, want_BTV, budget)


def _control(
    subject: Subject, backend: str, spec: ForwardSpec, want_BTV: Tensor, budget: Budget
) -> Measurement:
    """The compiled model with one layer doubled where it is compiled, against the model as it is."""
    name = f"compiled ({backend}) with a fault vs not, plain row"
    layer = _middle(subject, spec)
    if layer is None:
        return skipped(name, "no layer with weights of its own puts out a tensor")
    try:
        with (
            layer.register_forward_hook(_doubled_when_compiled),
            compiled(subject.model, backend),
        ):
            got_BTV = _plainly(subject, spec)
    except Exception as error:
        return skipped(name, f"the compiled model raises {first_line(error)} with a fault planted")
    note = "one layer is doubled where it is compiled: as good as equal, nothing was compiled, or a fault is not seen"
    return subject.compare(
        name, got_BTV, want_BTV, budget=budget, expect="differ", broken=Verdict.VACUOUS, note=note
    )


def _doubled_when_compiled(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output * 2 if torch.compiler.is_compiling() else output


def _middle(subject: Subject, spec: ForwardSpec) -> nn.Module | None:
    """The layer in the middle of those that ran: one with weights of its own that puts out a
    tensor.
    """
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
        _plainly(subject, spec)
    return ran[len(ran) // 2] if ran else None


def why_not_compiled(backend: str, device: torch.device) -> str | None:
    """Why nothing can be compiled here, found out by compiling a sum; None where that works."""
    try:
        torch.compile(lambda value: value + value.sin().sum(), backend=backend)(
            torch.ones(3, device=device)
        )
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


def _asked(subject: Subject) -> Iterator[tuple[str, ForwardSpec]]:
    tokens, length = subject.inputs.tokens, subject.inputs.length
    third = length // 3
    yield "plain row", ForwardSpec(tokens, unpromoted=True)
    if subject.can.cache:
        yield (
            "decoded on a cache",
            ForwardSpec(tokens, chunks=(third, length - third - 2, 1, 1), unpromoted=True),
        )
    if subject.can.reads_mask:
        yield "left-padded batch", replace(pad_rows(subject).spec("left", salt=1), unpromoted=True)


def _plainly(subject: Subject, spec: ForwardSpec) -> Tensor:
    """logits_BTV, run anew and not remembered; padded places count for nothing."""
    subject.passes.drop(spec)
    logits_BTV = subject.logits(spec)
    subject.passes.drop(spec)
    return without_padding(logits_BTV, spec)


def _budget(subject: Subject, spec: ForwardSpec, want_BTV: Tensor) -> Budget:
    return measure_budget(
        lambda: _plainly(subject, spec), want_BTV, subject.dtype_name, contextlib.nullcontext
    )
