"""What each module of a model got and gave in one float64 forward, and where values come from.

Axes: B batch, T positions, R rows, C columns.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from attncheck.attention.call import AttentionCall
from attncheck.attention.recorder import record
from attncheck.compare.decoder.spec import Projection
from attncheck.core.errors import Unsupported
from attncheck.model.inputs import Tokens
from attncheck.model.subject import Subject
from attncheck.numerics.hooks import hooked

ROUNDING = 1e-9
"""The relative error up to which two float64 values with float32 tables left out are the same."""


class Unreadable(Unsupported):
    """A model computes a part in a way that cannot be written out."""


def equal(left: Any, right: Any, slack: float = ROUNDING) -> bool:
    """Whether two tensors of one shape hold the same values up to rounding."""
    if not isinstance(left, Tensor) or not isinstance(right, Tensor) or left.shape != right.shape:
        return False
    size = max(float(right.abs().max()), 1e-300) if right.numel() else 0.0
    return bool(((left - right).abs() <= slack * size).all())


@final
@dataclass(eq=False)
class Observed:
    """One forward: inputs and outputs by module name, all that modules were `given`, attention
    calls in order, the logits, and the context in which the model computes like this.
    """

    model: nn.Module
    ids_BT: Tensor
    logits_BTV: Tensor
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    calls: list[AttentionCall]
    names: dict[int, str]
    given: dict[str, tuple[tuple[Any, ...], dict[str, Any]]]
    numerics: Callable[[], AbstractContextManager[Any]]

    def within(self, prefix: str) -> list[str]:
        """Modules inside one, by name."""
        return [name for name in self.outputs if name.startswith(f"{prefix}.")]

    def module(self, name: str) -> nn.Module:
        """A module by its name."""
        return self.model.get_submodule(name)

    def giving(self, value: Any, among: list[str]) -> str | None:
        """The last module whose output is this value."""
        found = [name for name in among if equal(self.outputs[name], value)]
        return found[-1] if found else None

    def linear(self, name: str) -> Projection | None:
        """The linear map that a module computes, if that is all that it does."""
        weight = getattr(self.module(name), "weight", None)
        x, y = self.inputs.get(name), self.outputs[name]
        if not isinstance(weight, Tensor) or weight.ndim != 2 or x is None or x.ndim < 2:
            return None
        bias = getattr(self.module(name), "bias", None)
        bias = bias.detach().double() if isinstance(bias, Tensor) else None
        for matrix_RC in (weight.detach().double(), weight.detach().double().T):
            if matrix_RC.shape == (y.shape[-1], x.shape[-1]):
                projection = Projection(weight=matrix_RC, bias=bias, module=name)
                if equal(torch.nn.functional.linear(x, matrix_RC, bias), y):
                    return projection
        return None

    def linears(self, prefix: str) -> dict[str, Projection]:
        """The linear modules inside one."""
        found = {name: self.linear(name) for name in self.within(prefix)}
        return {name: each for name, each in found.items() if each is not None}


def observe(subject: Subject, rows: Tokens) -> Observed:
    """Watch one forward of a subject that is at float64.

    Raises:
        Unsupported: the model runs no attention that can be recorded.
    """
    model = subject.model
    inputs: dict[str, Tensor] = {}
    outputs: dict[str, Tensor] = {}
    passed: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}

    def hook(name: str) -> Any:
        def keep(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            given = first_tensor((*args, *kwargs.values()))
            got = first_tensor(output)
            if got is not None and name not in outputs:
                outputs[name] = got.detach().cpu().double().clone()
                passed[name] = args, kwargs
                if given is not None and given.is_floating_point():
                    inputs[name] = given.detach().cpu().double().clone()

        return keep

    subject.can.watch.require()
    ids_BT = torch.tensor(rows)
    named = [(name, each) for name, each in model.named_modules() if name]
    hooks = [each.register_forward_hook(hook(name), with_kwargs=True) for name, each in named]
    with (
        torch.no_grad(),
        hooked(hooks),
        record(model, lambda call: call.copy(), inline=not subject.can.kernel) as calls,
    ):
        logits_BTV = subject.passes.call(rows, use_cache=False).logits_BTV
    names = {id(each): name for name, each in named}
    return Observed(
        model=model,
        ids_BT=ids_BT,
        logits_BTV=logits_BTV.cpu().double(),
        inputs=inputs,
        outputs=outputs,
        calls=calls,
        names=names,
        given=passed,
        numerics=subject.precision.numerics,
    )


def first_tensor(value: Any) -> Tensor | None:
    """The first tensor of a module's arguments or output."""
    if isinstance(value, Tensor):
        return value
    values = value.values() if isinstance(value, dict) else value
    if isinstance(values, (tuple, list)) or isinstance(value, dict):
        return next((each for each in values if isinstance(each, Tensor)), None)
    return None
