"""One forward as a list of operators that can be run again with some of them changed.

Nothing is known of the model: every operator that torch runs is kept with what it read, so that any
architecture can be edited. A value is a slot; in-place operators give a new one.
"""

from __future__ import annotations

import contextlib
import re
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, final

from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from attncheck.core.errors import Unsupported
from attncheck.numerics.hooks import hooked

NUMBER = re.compile(r"(?<=\.)\d+(?!\w)")
MOST_BYTES = 1 << 30
"""A forward whose values take more is not recorded."""


@final
@dataclass(frozen=True)
class Ref:
    """The value in a slot, as an argument of an operator."""

    slot: int


@final
@dataclass(frozen=True, eq=False)
class Op:
    """One operator: what it runs, its arguments with `Ref`s for values, the slots of the tensors
    that it returns, and the innermost module that runs it.
    """

    run: Callable[..., Any]
    name: str
    args: tuple[Any, ...]
    named: Mapping[str, Any]
    outs: tuple[int, ...]
    module: str

    @property
    def reads(self) -> tuple[int, ...]:
        """The slots that it reads, in order."""
        return tuple(each.slot for each in leaves((self.args, tuple(self.named.values()))))

    @property
    def home(self) -> str:
        """Its module with every number of a layer left out."""
        return NUMBER.sub("*", self.module)

    def reading(self, **slots: Any) -> Op:
        """The same with other arguments."""
        return replace(self, **slots)


@final
@dataclass(frozen=True)
class ModuleCall:
    """One call of a module: its first tensor, its output, and its last operator."""

    name: str
    given: int
    output: int
    last: int


def leaves(value: Any) -> Iterator[Ref]:
    """The values inside arguments."""
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from leaves(each)


def filled(value: Any, known: Mapping[int, Tensor]) -> Any:
    """Arguments with the values in place of their slots."""
    if isinstance(value, Ref):
        return known[value.slot]
    if isinstance(value, (list, tuple)):
        return type(value)(filled(each, known) for each in value)
    return value


def tensors_of(result: Any) -> list[Tensor]:
    """The tensors that an operator returns."""
    many = result if isinstance(result, (list, tuple)) else (result,)
    return [each for each in many if isinstance(each, Tensor)]


@final
@dataclass(eq=False)
class Program:
    """The operators of one forward, the value of every slot, and the slot of the logits."""

    ops: list[Op] = field(default_factory=list)
    values: dict[int, Tensor] = field(default_factory=dict)
    calls: list[ModuleCall] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)
    logits: int = -1

    def __post_init__(self) -> None:
        self.made = {slot: at for at, op in enumerate(self.ops) for slot in op.outs}

    def maker(self, slot: int) -> int | None:
        """The operator that made a slot; None for a constant."""
        return self.made.get(slot)

    def rerun(self, changes: Mapping[int, Op]) -> Iterator[tuple[int, dict[int, Tensor]]]:
        """Run the changed operators and what depends on them: each with all new values so far."""
        fresh: dict[int, Tensor] = {}

        known = ChainMap(fresh, self.values)
        for at in range(min(changes), len(self.ops)):
            op = changes.get(at, self.ops[at])
            if at not in changes and not any(slot in fresh for slot in op.reads):
                continue
            named = {key: filled(value, known) for key, value in op.named.items()}
            found = tensors_of(op.run(*filled(op.args, known), **named))
            fresh.update(zip(op.outs, found, strict=True))
            yield at, fresh

    def with_changes(self, changes: Mapping[int, Op], fresh: Mapping[int, Tensor]) -> Program:
        """The program after changes whose values were computed."""
        ops = [changes.get(at, op) for at, op in enumerate(self.ops)]
        return replace(self, ops=ops, values={**self.values, **fresh})


@final
class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps every operator of a forward."""

    def __init__(self, stack: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.program, self.stack = Program(), stack
        self.slots: dict[int, int] = {}
        self.alive: list[Any] = []
        self.bytes = 0

    def slot_of(self, tensor: Tensor) -> int:
        """The slot that a tensor holds."""
        return self.slots.get(id(tensor), -1)

    def ref(self, value: Any) -> Any:
        """Arguments with slots in the place of values that were computed."""
        if isinstance(value, Tensor):
            return Ref(self.slots[id(value)]) if id(value) in self.slots else value
        if isinstance(value, (list, tuple)):
            return type(value)(self.ref(each) for each in value)
        return value

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given, named = self.ref(args), {k: self.ref(v) for k, v in (kwargs or {}).items()}
        changing = func._schema.is_mutable and args and isinstance(args[0], Tensor)
        if changing and args[0]._is_view():
            raise Unsupported("it writes into a part of a tensor")
        if changing and id(args[0]) in self.slots:  # the slot keeps what it held before
            self.program.values[self.slots[id(args[0])]] = args[0].clone()
        result = func(*args, **(kwargs or {}))
        found = tensors_of(result)
        run = _on_a_copy(func) if changing else func
        outs = tuple(len(self.program.values) + n for n in range(len(found)))
        for slot, tensor in zip(outs, found, strict=True):
            self.slots[id(tensor)] = slot
            self.program.values[slot] = tensor
            self.bytes += tensor.nbytes
        self.alive.append(result)
        if self.bytes > MOST_BYTES:
            raise Unsupported("its values are too many to be kept")
        name = str(func._schema.name).partition("::")[2].rstrip("_")
        self.program.ops.append(Op(run, name, given, named, outs, self.stack[-1]))
        return result


def _on_a_copy(func: Any) -> Callable[..., Any]:
    """An operator that changes its first argument as one that returns a changed copy."""

    def run(first: Tensor, *args: Any, **named: Any) -> Any:
        return func(first.clone(), *args, **named)

    return run


@contextlib.contextmanager
def recorded(model: nn.Module) -> Iterator[_Recorder]:
    """While active, keep every operator of the model's forward; it is complete afterwards."""
    stack: list[str] = [""]
    recorder = _Recorder(stack)
    entered: list[int] = []

    def enter(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, named: Any) -> None:
            stack.append(name)
            first = next((e for e in (*args, *named.values()) if isinstance(e, Tensor)), None)
            entered.append(-1 if first is None else recorder.slot_of(first))

        return hook

    def leave(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            stack.pop()
            given, last = entered.pop(), len(recorder.program.ops) - 1
            made = [recorder.slot_of(each) for each in tensors_of(output)]
            if given >= 0 and made and made[0] >= 0:
                recorder.program.calls.append(ModuleCall(name, given, made[0], last))

        return hook

    hooks = []
    for name, each in model.named_modules():
        if name:
            hooks.append(each.register_forward_pre_hook(enter(name), with_kwargs=True))
            hooks.append(each.register_forward_hook(leave(name)))
    recorder.program.weights = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    recorder.program.names = {id(each): n for n, each in recorder.program.weights.items()}
    with hooked(hooks), sdpa_kernel(SDPBackend.MATH), recorder:
        yield recorder
    recorder.program.__post_init__()
