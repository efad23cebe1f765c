"""Random numbers of training: what checkpoints compute again must draw the same ones.

Axes: B batch, T positions, W hidden width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from attncheck.probing import Subject, hooked, input_gradient, training

SEED = 11
REDRAWN = (
    "what a checkpoint computes again draws other random numbers than the first time: it must keep "
    "their state (`preserve_rng_state=True`)"
)


@contextlib.contextmanager
def seeded(seed: int = SEED) -> Iterator[None]:
    """The same random numbers each time."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def drawn(
    gradient: Callable[..., Tensor], subject: Subject, mask_BT: Tensor | None = None
) -> Tensor:
    """A gradient under random numbers that are the same each time: what drops states by a function
    of its own does so although every rate that a module states is zero.
    """
    given = {} if mask_BT is None else {"mask_BT": mask_BT}
    with seeded():
        return gradient(subject, **given)


def draws(subject: Subject) -> bool:
    """Whether a training step draws random numbers that change its gradient."""
    with training(subject, checkpointing=False), seeded(SEED + 1):
        other_BTW = input_gradient(subject)
    with training(subject, checkpointing=False):
        return not torch.equal(other_BTW, drawn(input_gradient, subject))


def drawing_module(subject: Subject) -> str:
    """The first module that makes other values of the same ones under other random numbers; ""
    where none does.
    """
    first, second = (_through(subject, SEED + number) for number in range(2))
    for name, (entered, left) in first.items():
        again = second[name]
        if name and torch.equal(entered, again[0]) and not torch.equal(left, again[1]):
            return name
    return ""


def _through(subject: Subject, seed: int) -> dict[str, tuple[Tensor, Tensor]]:
    """What enters and leaves each module in its last call of one training forward."""
    found: dict[str, tuple[Tensor, Tensor]] = {}

    def after(name: str) -> Any:
        def hook(module: nn.Module, args: Any, named: dict[str, Any], output: Any) -> None:
            left = output[0] if isinstance(output, tuple) and output else output
            entered = next((each for each in (*args, *named.values()) if _holds(each)), None)
            if entered is not None and _holds(left):
                found[name] = entered.detach(), left.detach()

        return hook

    named = subject.model.named_modules()
    with (
        training(subject, checkpointing=False),
        hooked(module.register_forward_hook(after(at), with_kwargs=True) for at, module in named),
        seeded(seed),
    ):
        input_gradient(subject)
    return found


def _holds(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
