"""A change of operators, and what is said of the values around it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from torch import Tensor

from attncheck.compare.program.record import NUMBER, ModuleCall, Op, Program, Ref, leaves

INSTEAD = " in the place of "
SAME_NUMBERS = (
    *("view", "_unsafe_view", "transpose", "t", "permute", "unsqueeze", "squeeze", "expand"),
    *("clone", "detach", "alias", "slice", "select", "_to_copy", "reshape"),
)
"""Operators that hand numbers on."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class OpChange:
    """Operators that replace others; `key` is the same for the same change of another layer, `at`
    the operator that the words are about.
    """

    name: str
    words: str
    cure: str
    at: int
    ops: Mapping[int, Op]
    cost: float = 1.0

    @property
    def key(self) -> tuple[str, str]:
        """What is the same in every layer."""
        return self.name, NUMBER.sub("*", self.words.partition(INSTEAD)[0])


def where(op: Op) -> str:
    """The module of an operator in words."""
    return op.module or "the model"


def change_of(op: Op, at: int, **fields: Any) -> OpChange:
    """A change at an operator."""
    given = {"at": at, "ops": {}, "cure": "putting it right", **fields}
    return OpChange(**given)


def said(program: Program, value: Any) -> str:
    """A value in words: what computes it, and in which module."""
    at = source(program, value)
    if at is None:
        return "an input"
    op = program.ops[at]
    call = next((c for c in reversed(program.calls) if c.last == at), None)
    if call is not None and call.output in op.outs:
        return f"the output of {call.name}"
    return f"the {op.name.strip('_')} in {where(op)}"


def source(program: Program, value: Any) -> int | None:
    """The operator that computed the numbers of a value."""
    slot = next((each.slot for each in leaves(value)), None)
    at = None if slot is None else program.maker(slot)
    while at is not None and program.ops[at].name in SAME_NUMBERS and program.ops[at].reads:
        before = program.maker(program.ops[at].reads[0])
        if before is None:
            break
        at = before
    return at


def root(program: Program, value: Any) -> Tensor | None:
    """The weight that a value is, only handed on."""
    while isinstance(value, Ref):
        at = program.maker(value.slot)
        if at is None or program.ops[at].name not in SAME_NUMBERS:
            return None
        value = program.ops[at].args[0]
    return value if isinstance(value, Tensor) and id(value) in program.names else None


def before_softmax(program: Program, at: int) -> bool:
    """Whether it is a softmax, or one follows within a few steps."""
    if program.ops[at].name == "_softmax":
        return True
    slots, left = set(program.ops[at].outs), 12
    for op in program.ops[at + 1 :]:
        if slots & set(op.reads):
            if op.name == "_softmax":
                return True
            if op.name in ("bmm", "mm"):
                return False
            slots |= set(op.outs)
            left -= 1
        if not left:
            break
    return False


def of_scale(program: Program, at: int) -> str:
    """The name of a wrong factor by what follows: a softmax, nothing but the head, or a layer."""
    if before_softmax(program, at):
        return "softmax-scale"
    inner = (NUMBER.search(op.module) for op in program.ops[at:])
    return "scale" if any(inner) else "logit-scale"


def weights_in(program: Program, module: str) -> list[Tensor]:
    """The weights that the operators inside a module read."""
    found: dict[int, Tensor] = {}
    for op in program.ops:
        if op.module == module or op.module.startswith(f"{module}."):
            for each in op.args:
                if isinstance(each, Tensor) and id(each) in program.names:
                    found[id(each)] = each
    return list(found.values())


def is_norm(program: Program, call: ModuleCall) -> bool:
    """Whether a module has vectors for weights and nothing else."""
    weights = weights_in(program, call.name)
    return bool(weights) and all(each.squeeze().ndim <= 1 for each in weights)
