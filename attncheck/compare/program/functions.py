"""Another function, a part that is left out, another constant or another axis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attncheck.compare.decoder.feed_forward import ACTIVATIONS
from attncheck.compare.program.change import (
    OpChange,
    change_of,
    of_scale,
    root,
    said,
    where,
)
from attncheck.compare.program.record import Op, Program, Ref

UNARY: dict[str, str] = {
    "silu": "SiLU",
    "gelu": "GELU",
    "relu": "ReLU",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "softplus": "softplus",
    "exp": "exp",
    "log": "log",
    "neg": "a change of sign",
    "rsqrt": "a reciprocal root",
    "abs": "an absolute value",
}
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    **ACTIVATIONS,
    "softplus": F.softplus,
    "exp": torch.exp,
    "a change of sign": torch.neg,
}
TWO = ("add", "sub", "mul", "div")
HIDDEN = -1e4
"""What a mask adds to a score is below this."""
EPS = (0.0, 1e-12, 1e-8, 1e-6, 1e-5, 1e-3)


def function_changes(program: Program, at: int) -> Iterator[OpChange]:
    """Every change of what one operator computes."""
    yield from _functions(program, at)
    yield from _extra(program, at)
    yield from _left_out(program, at)
    yield from _constants(program, at)
    yield from _kernels(program.ops[at], at)
    yield from _axes(program, at)


def _functions(program: Program, at: int) -> Iterator[OpChange]:
    """Another function of one value, or none."""
    op = program.ops[at]
    usual = UNARY.get(op.name)
    if usual is None:
        return
    for name, function in FUNCTIONS.items():
        if name == usual:
            continue
        got = (
            f"no {usual}" if name == "no activation" else f"{name} where the reference has {usual}"
        )
        changed = replace(op, run=lambda x, *a, _f=function, **k: _f(x))
        kind = "activation" if op.name not in ("neg", "exp", "log", "abs", "rsqrt") else "function"
        yield change_of(op, at, name=kind, words=f"{got}, in {where(op)}", ops={at: changed})


def _extra(program: Program, at: int) -> Iterator[OpChange]:
    """A function of a value that the reference reads as it is."""
    op = program.ops[at]
    for place, each in enumerate(op.args if op.name in (*TWO, "bmm", "mm") else ()):
        if not isinstance(each, Ref) or not program.values[each.slot].is_floating_point():
            continue
        for name in ACTIVATIONS.keys() - {"no activation"}:
            words = f"{name} of {said(program, each)}, which is read as it is by {where(op)}"
            run = _argument_of(op.run, place, ACTIVATIONS[name])
            ops = {at: replace(op, run=run)}
            yield change_of(op, at, name="activation", words=words, ops=ops, cost=1.5)


def _argument_of(
    func: Callable[..., Any], place: int, function: Callable[[Tensor], Tensor]
) -> Callable[..., Any]:
    def run(*args: Any, **named: Any) -> Any:
        changed = [function(each) if n == place else each for n, each in enumerate(args)]
        return func(*changed, **named)

    return run


def _left_out(program: Program, at: int) -> Iterator[OpChange]:
    """A term, a factor, a bias or a mask that is not there."""
    op = program.ops[at]
    if op.name in TWO and len(op.args) > 1:
        shape = program.values[op.outs[0]].shape
        for kept, lost in ((0, 1), (1, 0)) if op.name in ("add", "mul") else ((0, 1),):
            if not isinstance(op.args[kept], (Ref, Tensor)):
                continue
            name, words = _of_operand(program, at, op.args[lost])
            run = _operand(kept, shape)
            yield change_of(op, at, name=name, words=words, ops={at: replace(op, run=run)})
    elif op.name == "addmm":
        run = _without_first(op.run)
        words = f"no bias in {where(op)}"
        yield change_of(op, at, name="bias-missing", words=words, ops={at: replace(op, run=run)})
    elif op.name == "convolution" and op.args[2] is not None:
        args = (*op.args[:2], None, *op.args[3:])
        words = f"no bias of the convolution in {where(op)}"
        yield change_of(op, at, name="bias-missing", words=words, ops={at: replace(op, args=args)})
    elif op.name in ("masked_fill", "where"):
        kept = 0 if op.name == "masked_fill" else 1
        output = program.values[op.outs[0]]
        name, run = _of_mask(output), _operand(kept, output.shape)
        words = f"no mask in {where(op)}"
        yield change_of(op, at, name=name, words=words, ops={at: replace(op, run=run)})


def _operand(number: int, shape: torch.Size) -> Callable[..., Any]:
    def run(*args: Any, **named: Any) -> Any:
        return args[number].expand(shape).clone()

    return run


def _without_first(func: Callable[..., Any]) -> Callable[..., Any]:
    def run(bias: Tensor, *args: Any, **named: Any) -> Any:
        return func(torch.zeros_like(bias), *args, **named)

    return run


def _of_operand(program: Program, at: int, lost: Any) -> tuple[str, str]:
    """The name and the words for an operand that is left out."""
    op = program.ops[at]
    home, kind = where(op), "term" if op.name in ("add", "sub") else "factor"
    if not isinstance(lost, (Ref, Tensor)):
        if kind == "factor":
            return of_scale(program, at), f"a factor of {lost:g} left out in {home}"
        return "constant", f"{lost:g} not added in {home}"
    if isinstance(lost, Ref) and kind == "term" and _hides(program.values[lost.slot]):
        return _of_mask(program.values[lost.slot]), f"no mask on the scores in {home}"
    weight = root(program, lost)
    if weight is not None:
        name = program.names[id(weight)].rpartition(".")[2]
        return f"{'bias' if kind == 'term' else 'weight'}-missing", f"no {name} in {home}"
    return f"{kind}-missing", f"{said(program, lost)} is no {kind} of the {_sum(op)} in {home}"


def _hides(value: Tensor) -> bool:
    """Whether a term is a mask: nothing, or so little that a softmax leaves nothing of it."""
    kept = value > HIDDEN
    return bool(kept.any()) and not bool(kept.all()) and not bool(value[kept].any())


def _of_mask(value: Tensor) -> str:
    """The name of a mask that is left out, by what it hides."""
    hidden = (value < HIDDEN) if value.dtype != torch.bool else ~value
    square = hidden.ndim > 1 and hidden.shape[-1] == hidden.shape[-2]
    causal = square and bool((hidden == torch.ones_like(hidden).triu(1)).all())
    return "causal-mask-missing" if causal else "mask-missing"


def _sum(op: Op) -> str:
    return "sum" if op.name in ("add", "sub") else "product"


def _constants(program: Program, at: int) -> Iterator[OpChange]:
    """A small number that is added: the eps of a norm."""
    op = program.ops[at]
    if op.name != "add" or len(op.args) < 2 or not isinstance(op.args[1], float):
        return
    for eps in EPS:
        if eps != op.args[1] < 0.1:
            words = f"eps {eps:g} where the reference has {op.args[1]:g}, in {where(op)}"
            args = (op.args[0], eps, *op.args[2:])
            yield change_of(op, at, name="norm-eps", words=words, ops={at: replace(op, args=args)})


def _kernels(op: Op, at: int) -> Iterator[OpChange]:
    """A convolution whose kernel is turned round."""
    if op.name == "convolution":
        run = _flipped(op.run)
        words = f"the kernel of the convolution turned round in {where(op)}"
        yield change_of(op, at, name="kernel-flipped", words=words, ops={at: replace(op, run=run)})


def _flipped(func: Callable[..., Any]) -> Callable[..., Any]:
    def run(x: Tensor, kernel: Tensor, *args: Any) -> Any:
        return func(x, kernel.flip(-1), *args)

    return run


def _axes(program: Program, at: int) -> Iterator[OpChange]:
    """Another axis of a softmax or a sum, and a part that begins elsewhere."""
    op = program.ops[at]
    readers = [n for n in range(at + 1, at + 6) if set(op.outs) & _reads(program, n)]
    for near in (at, *filter(None, (program.maker(slot) for slot in op.reads)), *readers):
        each = program.ops[near]
        if each.name == "slice" and len(each.args) >= 4 and each.reads:
            yield from _moved(program, near)
    if op.name not in ("_softmax", "cumsum", "_log_softmax") or not op.reads:
        return
    x, axis = program.values[op.reads[0]], op.args[1] % program.values[op.reads[0]].ndim
    for other in range(x.ndim):
        if other != axis:
            words = f"axis {other} where the reference has {axis}, of the softmax in {where(op)}"
            changed = replace(op, args=(op.args[0], other, *op.args[2:]))
            yield change_of(op, at, name="softmax-axis", words=words, ops={at: changed})


def _reads(program: Program, at: int) -> set[int]:
    return set(program.ops[at].reads) if at < len(program.ops) else set()


def _moved(program: Program, at: int) -> Iterator[OpChange]:
    """A slice that begins some places further on or back."""
    op = program.ops[at]
    _, axis, start, end = op.args[:4]
    x = program.values[op.reads[0]]
    size = x.shape[axis]
    first, last = start % (size + 1), min(end, size) if end >= 0 else size + end
    for step in (-3, -2, -1, 1, 2, 3):
        if first + step >= 0 and last + step <= size:
            args = (op.args[0], axis, first + step, last + step, *op.args[4:])
            words = f"a part that begins {step:+d} places away in {where(op)}"
            changed = replace(op, args=args)
            yield change_of(op, at, name="position-offset", words=words, ops={at: changed})
