"""A whole module as another function of its input."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from attncheck.compare.program.change import (
    OpChange,
    change_of,
    weights_in,
)
from attncheck.compare.program.functions import FUNCTIONS
from attncheck.compare.program.record import ModuleCall, Program, Ref


def module_changes(program: Program, at: int) -> Iterator[OpChange]:
    """Every change of the modules that begin or end with an operator."""
    for call in program.calls:
        if call.last == at or at in _first_ops(program, call):
            yield from _of_module(program, call)


def _first_ops(program: Program, call: ModuleCall) -> list[int]:
    """The first operators of a module that read its input."""
    first = program.maker(call.given)
    start = 0 if first is None else first + 1
    inside = (n for n in range(start, call.last + 1) if call.given in program.ops[n].reads)
    return list(inside)[:1]


def _of_module(program: Program, call: ModuleCall) -> Iterator[OpChange]:
    """A whole module as another function of its input: another activation, a norm that is missing
    or of another kind.
    """
    x, output = program.values[call.given], program.values[call.output]
    if x.shape != output.shape or call.output not in program.ops[call.last].outs:
        return
    op = program.ops[call.last]
    weights = weights_in(program, call.name)
    if any(each.ndim > 1 for each in weights):
        kinds: dict[str, Callable[[Tensor], Tensor]] = {"missing": lambda y: y}
    elif weights:
        kinds = {"missing": lambda y: y, **_norms(weights, x.shape[-1])}
    else:
        kinds = dict(FUNCTIONS)
    for kind, function in kinds.items():
        run = _beside(function, [program.values[slot] for slot in op.outs[1:]])
        changed = replace(op, args=(Ref(call.given),), named={}, run=run)
        name, words = _of_kind(call.name, kind, weights)
        yield change_of(op, call.last, name=name, words=words, ops={call.last: changed}, cost=1.5)


def _beside(function: Callable[[Tensor], Tensor], others: list[Tensor]) -> Callable[..., Any]:
    """A function that returns what an operator returns beside its value as well."""
    return lambda x: (function(x), *others) if others else function(x)


def _of_kind(module: str, kind: str, weights: list[Tensor]) -> tuple[str, str]:
    if not weights:
        return "activation", f"{kind} where the reference has another function in {module}"
    if any(each.ndim > 1 for each in weights):
        return "module-missing", f"no {module}"
    return (
        ("norm-missing", f"no {module}")
        if kind == "missing"
        else ("norm-kind", f"{kind} in {module}")
    )


def _norms(weights: list[Tensor], width: int) -> dict[str, Callable[[Tensor], Tensor]]:
    """Norms of both kinds with these weights."""
    scale = weights[0]
    bias = weights[1] if len(weights) > 1 else None
    if scale.shape[-1] != width:
        return {}
    found: dict[str, Callable[[Tensor], Tensor]] = {}
    for eps in (1e-6, 1e-5, 1e-12):
        layer = partial(F.layer_norm, normalized_shape=[width], weight=scale, bias=bias, eps=eps)
        rms = partial(F.rms_norm, normalized_shape=[width], weight=scale, eps=eps)
        found |= {f"layer norm with eps {eps:g}": layer, f"RMS norm with eps {eps:g}": rms}
    return found
