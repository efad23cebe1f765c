"""A function from ids to logits as a model.

Axes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

DEEPEST = 6
"""How many containers inside one another are searched for tensors."""


class FunctionModel(nn.Module):
    """Calls a function. Modules and floating tensors that it closes over, is bound to, or finds in
    containers and plain objects there are registered under their own names, so that they are cast
    and compared. The tensors stay the very objects that the function reads.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        found: list[tuple[tuple[str, ...], Tensor]] = []
        for name, value in reachable(function):
            if isinstance(value, nn.Module):
                self.add_module(name, value)
            else:
                found += [((name, *path), each) for path, each in tensors_in(value, DEEPEST)]
        seen: set[int] = {id(each) for each in self.parameters()}
        for path, tensor in _short(found):
            if id(tensor) not in seen:
                seen.add(id(tensor))
                _register(self, path, tensor)
        self.eval()

    def forward(self, input_ids: Tensor) -> Any:
        """logits_BTV of ids_BT, as the function returns them."""
        return self.function(input_ids)


def as_module(made: Any) -> Any:
    """A function, or a module whose weights are plain tensors, as a module with parameters;
    anything else is left alone.
    """
    if isinstance(made, nn.Module):
        found = None if _has_parameters(made) else FunctionModel(made.forward)
        return found if found is not None and _has_parameters(found) else made
    return FunctionModel(made) if callable(made) and not isinstance(made, type) else made


def _has_parameters(model: nn.Module) -> bool:
    return next(model.parameters(), None) is not None


def reachable(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """What a function, a partial one or a method's object can reach by name."""
    while hasattr(function, "func"):  # functools.partial
        yield from getattr(function, "keywords", {}).items()
        yield from ((f"argument{n}", each) for n, each in enumerate(getattr(function, "args", ())))
        function = function.func
    owner = getattr(function, "__self__", None)
    yield from (vars(owner) if hasattr(owner, "__dict__") else {}).items()
    try:
        variables = inspect.getclosurevars(function)
    except TypeError:
        yield from vars(function).items() if hasattr(function, "__dict__") else ()
    else:
        yield from (*variables.nonlocals.items(), *variables.globals.items())


def tensors_in(value: Any, depth: int) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """Floating tensors inside containers and plain objects, each with the names on the way."""
    if isinstance(value, Tensor):
        if value.is_floating_point() and value.is_leaf:
            yield (), value
        return
    if not depth or isinstance(value, (str, bytes, type)) or inspect.ismodule(value):
        return
    if inspect.isfunction(value):
        inside: Any = {n: each for n, each in reachable(value) if not inspect.isfunction(each)}
    elif isinstance(value, Mapping):
        inside = value
    elif isinstance(value, (list, tuple)):
        inside = dict(enumerate(value))
    else:
        inside = vars(value) if hasattr(value, "__dict__") and not callable(value) else {}
    for name, each in list(inside.items()):
        yield from (((str(name), *path), found) for path, found in tensors_in(each, depth - 1))


def _short(
    found: list[tuple[tuple[str, ...], Tensor]],
) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """Tensors with their paths less the names that all of them begin with."""
    paths = [path for path, _ in found]
    common = 0
    while paths and all(
        len(path) > common + 1 and path[common] == paths[0][common] for path in paths
    ):
        common += 1
    yield from ((path[common:], tensor) for path, tensor in found)


def _register(model: nn.Module, path: tuple[str, ...], tensor: Tensor) -> None:
    """Make a tensor itself a parameter, in modules named by its path: a `Parameter` of it would be
    another object, and a cast of that would leave the function with the old one.
    """
    *modules, name = ".".join(path).replace("/", ".").split(".")
    for each in modules:
        inner = model._modules.get(each)
        if inner is None:
            inner = model._modules[each] = nn.Module()
        model = inner
    while name in model._parameters or name in model._modules:
        name += "_"
    model._parameters[name] = tensor  # type: ignore[assignment]
