"""Where a failure starts: the first module that differs between a right and a wrong forward.

Axes: B batch, T positions, K numbers kept for each position.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from attncheck.attention.layers import is_list_member, layer_number
from attncheck.core.finding import Location
from attncheck.diagnosis.failure import Failure, FailureSide, real_tokens
from attncheck.diagnosis.outside import beside_others, under_padding
from attncheck.distributed.ranks import agreed
from attncheck.faults.engine.injection import plain_calls
from attncheck.model.forward_spec import ForwardSpec, Mask2D
from attncheck.numerics.divergence import max_abs_diff
from attncheck.numerics.first_divergence import FirstDivergence, first_divergence
from attncheck.numerics.module_outputs import ModuleOutputs, outputs_with_floors, recording
from attncheck.observation.hidden import hidden_modules

ATTENTION = re.compile(r"att(?:entio)?n", re.IGNORECASE)
Run = Callable[[], object]


Located = tuple[FirstDivergence, tuple[float, ...]]
"""The first divergence, and the largest difference after each layer."""


def locate(failure: Failure) -> Location | None:
    """The first diverging module of a failing case; None where no module can be compared."""
    wrong = failure.wrong
    found = _against_trusted(failure, wrong[0]) if wrong else _between_sides(failure)
    return _location(failure, agreed("where it first differs", found))


def locate_leak(failure: Failure) -> Location | None:
    """The first module that carries the last token to an earlier position, on the trusted path."""
    inputs = failure.subject.inputs
    last = inputs.length - 1
    real_BT = torch.ones(1, inputs.length, dtype=torch.bool)
    real_BT[:, -1] = False
    moved = ForwardSpec((inputs.other(inputs.row, last),))
    place = _location(failure, _trusted_pair(failure, ForwardSpec(inputs.tokens), moved, real_BT))
    return replace(place, source_position=last) if place else None


def locate_padding(failure: Failure) -> Location | None:
    """The first module that carries padding tokens to a real position, on the trusted path."""
    usual, changed = failure.sides[0].spec, under_padding(failure)
    if changed is None:
        return None
    return _location(failure, _trusted_pair(failure, usual, changed, _real(usual)))


def locate_mixing(failure: Failure) -> Location | None:
    """The first module that carries one sequence of a batch into another, on the trusted path."""
    spec = failure.sides[0].spec
    for row in range(len(spec.tokens)):
        real_BT = _real(spec)
        real_BT[:row], real_BT[row + 1 :] = False, False
        found = _trusted_pair(failure, spec, beside_others(failure, spec, row), real_BT)
        if found is not None:
            return _location(failure, found)
    return None


def locate_unsteady(failure: Failure) -> Location | None:
    """The first module that answers the same call in two ways."""
    modules, shape = hidden_modules(failure.subject.model), (1, failure.subject.inputs.length)
    outputs: list[ModuleOutputs] = []
    for _ in range(2):
        with recording(modules) as recorder:
            failure.trusted.logits(ForwardSpec(failure.subject.inputs.tokens))
        outputs.append(recorder.outputs(shape))
    return _location(failure, _compared(torch.ones(shape, dtype=torch.bool), *outputs))


ELSEWHERE: dict[str, Callable[[Failure], Location | None]] = {
    "leak-outside-attention": locate_leak,
    "dropout-active": locate_unsteady,
    "padding-visible": locate_padding,
    "rows-mixed": locate_mixing,
}
"""Faults that show best in another comparison than the one that failed."""


def place_of_fault(failure: Failure, fault: str, place: Location | None) -> Location | None:
    """The place of a fault, looked for where it shows best."""
    elsewhere = ELSEWHERE.get(fault)
    if elsewhere is None or (place is not None and fault == "padding-visible"):
        return place  # of padding, the failing call shows the place as well
    return elsewhere(failure) or place


def _against_trusted(failure: Failure, side: FailureSide) -> Located | None:
    """The wrong side against the trusted path on the same tokens."""
    spec, subject = side.spec, failure.subject
    right = partial(failure.trusted.logits, spec)
    return _first(failure, _real(spec), right, partial(side.run, subject))


def _between_sides(failure: Failure) -> Located | None:
    """Two sides that agree with the trusted path, where the changed tokens may move nothing."""
    got, want = (side.spec for side in failure.sides)
    if len(got.tokens) > 1 and len(want.tokens) == 1:
        return _among_sequences(failure, got)
    if got.length != want.length or len(got.tokens) != len(want.tokens):
        return None
    same_BT = torch.tensor(got.tokens) == torch.tensor(want.tokens)
    return _trusted_pair(failure, want, got, _unmoved(failure, same_BT))


def _among_sequences(failure: Failure, got: ForwardSpec) -> Located | None:
    """A batch against as many copies of its first sequence, which may not move."""
    count, first_BT = len(got.tokens), _real(got)
    first_BT[1:] = False
    return _trusted_pair(failure, got.of_rows((0,) * count), got, first_BT)


def _unmoved(failure: Failure, same_BT: Tensor) -> Tensor:
    """The positions that may not move: every real one where only padding changed, those before the
    first change otherwise.

    Where the sequence changes from its first token on, the rest is another document.
    """
    real_BT = _real(failure.sides[0].spec)
    padded = isinstance(failure.sides[0].spec.mask, Mask2D)
    if padded and bool((same_BT | ~real_BT).all()):
        return real_BT
    before_BT = same_BT.long().cumprod(1).bool()
    return before_BT if bool(before_BT.any()) else same_BT


def _real(spec: ForwardSpec) -> Tensor:
    real_BT = real_tokens(spec)
    return torch.ones(len(spec.tokens), spec.length).bool() if real_BT is None else real_BT


def _trusted_pair(
    failure: Failure, right: ForwardSpec, wrong: ForwardSpec, real_BT: Tensor
) -> Located | None:
    trusted = failure.trusted
    return _first(failure, real_BT, partial(trusted.logits, right), partial(trusted.logits, wrong))


def _first(failure: Failure, real_BT: Tensor, right: Run, wrong: Run) -> Located | None:
    modules, shape = hidden_modules(failure.subject.model), (real_BT.shape[0], real_BT.shape[1])
    good = outputs_with_floors(modules, right, shape, real_BT=real_BT)
    with recording(modules) as bad:
        wrong()
    return _compared(real_BT, good, bad.outputs(shape))


def _compared(real_BT: Tensor, good: ModuleOutputs, bad: ModuleOutputs) -> Located | None:
    found = first_divergence(good, bad, real_BT=real_BT, lost_anywhere=True)
    return None if found is None else (found, _by_layer(real_BT, good, bad))


def _by_layer(real_BT: Tensor, good: ModuleOutputs, bad: ModuleOutputs) -> tuple[float, ...]:
    """The largest fingerprint difference of each layer's output, in the order of execution."""
    names = [name for name, kind in good if kind == "out" and is_list_member(name)]
    outermost = min((name.count(".") for name in names), default=0)
    events = [(name, "out") for name in names if name.count(".") == outermost]
    return tuple(
        _rounded(max_abs_diff(good[event].print_BTK[real_BT], bad[event].print_BTK[real_BT]))
        for event in events
        if event in bad
    )


def _rounded(largest: float) -> float:
    return float(f"{largest:.2e}") if math.isfinite(largest) else math.inf


def _location(failure: Failure, located: Located | None) -> Location | None:
    if located is None:
        return None
    found, layers = located
    name, kind = found.event
    module = name if kind == "out" else _around(failure.subject.model, name)
    homes = attending(failure)
    module = attention_home(module, homes)
    number = layer_number(module)
    attention = in_attention(module, homes)
    return Location(
        module=module,
        layer=number,
        query_position=found.position,
        layers=layers,
        note="" if attention or number is None else "outside attention",
        source=source_of(failure.subject.model, module),
    )


def source_of(model: nn.Module, name: str) -> str:
    """The file and first line of a module's forward, or of the one around a module of torch, which
    calls it; empty where it has no Python source.
    """
    try:
        kind = type(model.get_submodule(name))
        if name and kind.__module__.startswith("torch."):
            return source_of(model, name.rpartition(".")[0])
        forward = inspect.unwrap(kind.forward)
        return f"{inspect.getsourcefile(forward)}:{inspect.getsourcelines(forward)[1]}"
    except (AttributeError, OSError, TypeError):
        return ""


def attending(failure: Failure) -> frozenset[str]:
    """The modules that compute attention, in a model that calls none of its modules so."""
    subject = failure.subject
    named = {id(module): name for name, module in subject.model.named_modules()}
    if any(map(in_attention, named.values())) or not subject.can.watch:
        return frozenset()
    calls = (id(call.module) for call in plain_calls(subject))
    return frozenset(named[each] for each in calls if each in named) - {""}


def in_attention(module: str, homes: Collection[str] = ()) -> bool:
    """Whether a module is attention or inside it, by its name, or by those that are."""
    called = any(ATTENTION.search(part) and "norm" not in part for part in module.split("."))
    return called or any(f"{module}.".startswith(f"{home}.") for home in homes)


def _around(model: nn.Module, name: str) -> str:
    """The module whose code calls this one: the nearest above that is no list."""
    above = name.rpartition(".")[0]
    while above and isinstance(model.get_submodule(above), nn.ModuleList):
        above = above.rpartition(".")[0]
    return above


def attention_home(module: str, homes: Collection[str] = ()) -> str:
    """The attention module around a projection or a rotary table, else the module itself."""
    parts = module.split(".")
    for stop in range(len(parts), 0, -1):
        if ".".join(parts[:stop]) in homes:
            return ".".join(parts[:stop])
        if in_attention(parts[stop - 1]):
            return ".".join(parts[:stop])
    return module
