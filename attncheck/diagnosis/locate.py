"""Where a failure starts: the first module, in the order of execution, whose values differ between
a right and a wrong run.

If what goes into a module is right and what comes out is wrong, the fault is in that module. If
what goes into it is already wrong although everything before was right, it is in the code around
it: the module that contains it.

Axes: B batch, T positions, K numbers kept for each position.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from attncheck.attention.layers import is_list_member, layer_number
from attncheck.core.finding import Location
from attncheck.diagnosis.failure import Failure, FailureSide, real_tokens
from attncheck.diagnosis.outside import under_padding
from attncheck.distributed.ranks import agreed
from attncheck.model.forward_spec import ForwardSpec, Mask2D
from attncheck.model.subject import Subject
from attncheck.numerics.divergence import max_abs_diff
from attncheck.numerics.first_divergence import FirstDivergence, first_divergence
from attncheck.numerics.module_outputs import ModuleOutputs, outputs_with_floors, recording

ATTENTION = re.compile(r"att(?:entio)?n", re.IGNORECASE)
Run = Callable[[], object]


Located = tuple[FirstDivergence, tuple[float, ...]]
"""The first divergence, and the largest difference after each layer."""


def locate(failure: Failure) -> Location | None:
    """The first diverging module of a failing case, or None where no module of this model can be
    compared.
    """
    wrong = failure.wrong
    found = _against_trusted(failure, wrong[0]) if wrong else _between_sides(failure)
    found = agreed("where it first differs", found)
    return _location(failure, found) if found else None


def locate_leak(failure: Failure) -> Location | None:
    """The first module through which the last token reaches an earlier position, on the trusted
    path.
    """
    inputs, trusted = failure.subject.inputs, failure.trusted
    usual, moved = (
        ForwardSpec(inputs.tokens),
        ForwardSpec((inputs.other(inputs.row, inputs.length - 1),)),
    )
    keep_BT = torch.ones(1, inputs.length, dtype=torch.bool)
    keep_BT[:, -1] = False
    size = (1, inputs.length)
    found = _first(
        failure.subject, size, keep_BT, lambda: trusted.logits(usual), lambda: trusted.logits(moved)
    )
    return replace(_location(failure, found), source_position=inputs.length - 1) if found else None


def locate_padding(failure: Failure) -> Location | None:
    """The first module through which the tokens under the padding reach a real one, on the trusted
    path.
    """
    usual, changed, trusted = failure.sides[0].spec, under_padding(failure), failure.trusted
    if changed is None:
        return None
    real_BT = real_tokens(usual)
    assert real_BT is not None
    size = (len(usual.tokens), usual.length)
    found = _first(
        failure.subject,
        size,
        real_BT,
        lambda: trusted.logits(usual),
        lambda: trusted.logits(changed),
    )
    return _location(failure, found) if found else None


def locate_unsteady(failure: Failure) -> Location | None:
    """The first module that answers the same call in two ways."""
    inputs, trusted = failure.subject.inputs, failure.trusted
    modules, usual = _modules(failure.subject.model), ForwardSpec(inputs.tokens)
    traces: list[ModuleOutputs] = []
    for _ in range(2):
        with recording(modules) as recorder:
            trusted.logits(usual)
        traces.append(_no_widths(recorder.outputs((1, inputs.length))))
    found = _compared(torch.ones(1, inputs.length, dtype=torch.bool), traces[0], traces[1])
    return _location(failure, found) if found else None


def _against_trusted(failure: Failure, side: FailureSide) -> Located | None:
    """The wrong side against the trusted path on the same tokens."""
    subject, spec = failure.subject, side.spec
    shape = (len(spec.tokens), spec.length)
    rows_BT = real_tokens(spec)
    rows_BT = torch.ones(shape, dtype=torch.bool) if rows_BT is None else rows_BT
    return _first(
        subject, shape, rows_BT, lambda: failure.trusted.logits(spec), lambda: side.run(subject)
    )


def _between_sides(failure: Failure) -> Located | None:
    """Two right-looking sides against each other, at the positions that come before everything that
    was changed.
    """
    got, want = (side.spec for side in failure.sides)
    if len(got.tokens) > 1 and len(want.tokens) == 1:
        return _among_rows(failure, got)
    if got.length != want.length or len(got.tokens) != len(want.tokens):
        return None
    same_BT = torch.tensor(got.tokens) == torch.tensor(want.tokens)
    keep_BT = _unmoved(failure, same_BT)
    trusted = failure.trusted
    return _first(
        failure.subject,
        tuple(same_BT.shape),
        keep_BT,
        lambda: trusted.logits(want),
        lambda: trusted.logits(got),
    )


def _among_rows(failure: Failure, got: ForwardSpec) -> Located | None:
    """A batch against as many copies of its first row: that row may not move."""
    rows_BT = torch.zeros(len(got.tokens), got.length, dtype=torch.bool)
    real_BT = real_tokens(got)
    rows_BT[0] = True if real_BT is None else real_BT[0]
    copies = replace(got, tokens=(got.tokens[0],) * len(got.tokens))
    if isinstance(got.mask, Mask2D):
        copies = replace(copies, mask=Mask2D((got.mask.rows[0],) * len(got.tokens)))
    trusted = failure.trusted
    return _first(
        failure.subject,
        tuple(rows_BT.shape),
        rows_BT,
        lambda: trusted.logits(copies),
        lambda: trusted.logits(got),
    )


def _unmoved(failure: Failure, same_BT: Tensor) -> Tensor:
    """Positions that may not move: those before the first change, every real one where only padding
    changed.

    Where the row changes from its first token on, what stays is another document.
    """
    real_BT = real_tokens(failure.sides[0].spec)
    if real_BT is not None and bool((same_BT | ~real_BT).all()):
        return real_BT
    before_BT = same_BT.long().cumprod(1).bool()
    return before_BT if bool(before_BT.any()) else same_BT


def _first(
    subject: Subject, shape: tuple[int, ...], rows_BT: Tensor, right: Run, wrong: Run
) -> Located | None:
    modules = _modules(subject.model)
    size = (shape[0], shape[1])
    good = _no_widths(outputs_with_floors(modules, right, size, real_BT=rows_BT))
    with recording(modules) as bad:
        wrong()
    return _compared(rows_BT, good, _no_widths(bad.outputs(size)))


def _no_widths(outputs: ModuleOutputs) -> ModuleOutputs:
    """Chunks change how many values a position of a (B, H, T, D) output seems to have."""
    return {event: replace(each, width=0) for event, each in outputs.items()}


def _compared(rows_BT: Tensor, good: ModuleOutputs, bad: ModuleOutputs) -> Located | None:
    found = first_divergence(good, bad, real_BT=rows_BT, lost_anywhere=True)
    return None if found is None else (found, _by_layer(rows_BT, good, bad))


def _by_layer(rows_BT: Tensor, good: ModuleOutputs, bad: ModuleOutputs) -> tuple[float, ...]:
    """The largest fingerprint difference of each layer's output, in the order of execution."""
    names = [name for name, kind in good if kind == "out" and is_list_member(name)]
    outermost = min((name.count(".") for name in names), default=0)
    events = [(name, "out") for name in names if name.count(".") == outermost]
    return tuple(
        _figure(max_abs_diff(good[event].print_BTK[rows_BT], bad[event].print_BTK[rows_BT]))
        for event in events
        if event in bad
    )


def _figure(largest: float) -> float:
    return float(f"{largest:.2e}") if math.isfinite(largest) else math.inf


def _modules(model: nn.Module) -> dict[str, nn.Module]:
    """Every module that hidden states go through: all within numbered layers, and those outside
    that hold weights.
    """
    named = {name: module for name, module in model.named_modules() if name}
    return {
        name: module
        for name, module in named.items()
        if layer_number(name) is not None or any(True for _ in module.parameters())
    }


def _location(failure: Failure, located: Located) -> Location:
    found, layers = located
    name, kind = found.event
    module = _home(name if kind == "out" else _around(failure.subject.model, name))
    number = layer_number(module)
    attention = in_attention(module)
    return Location(
        module=module,
        layer=number,
        query_position=found.position,
        layers=layers,
        note="" if attention or number is None else "outside attention",
    )


def in_attention(module: str) -> bool:
    """Whether a module is attention or inside it, by its name."""
    return any(ATTENTION.search(part) and "norm" not in part for part in module.split("."))


def _around(model: nn.Module, name: str) -> str:
    """The module whose code calls this one: the nearest one above that is no mere list."""
    above = name.rpartition(".")[0]
    while above and isinstance(model.get_submodule(above), nn.ModuleList):
        above = above.rpartition(".")[0]
    return above


def _home(module: str) -> str:
    """The attention module that a projection or a rotary table belongs to, else the module itself."""
    parts = module.split(".")
    for stop in range(len(parts), 0, -1):
        if in_attention(parts[stop - 1]):
            return ".".join(parts[:stop])
    return module
