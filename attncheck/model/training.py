"""Training mode as it would be without randomness, with or without gradient checkpointing."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from attncheck.core.errors import Unsupported, first_line
from attncheck.model.refusal import REFUSALS, classified
from attncheck.model.subject import Subject
from attncheck.model.weights import buffers_of

RANDOM = re.compile(r"drop|jitter|noise")
"""Names of the numbers by which modules make training random; `nn.Dropout` keeps its own under `p`.
"""
HOOK = "_require_grads_hook"
"""What transformers calls its hook that has embeddings ask for a gradient."""


def _random_numbers(model: nn.Module) -> Iterator[tuple[nn.Module, str, float]]:
    for module in model.modules():
        names = ("p",) if isinstance(module, nn.modules.dropout._DropoutNd) else tuple(vars(module))
        for name in names:
            value = getattr(module, name, None)
            if isinstance(value, float) and (name == "p" or RANDOM.search(name)):
                yield module, name, value


@contextlib.contextmanager
def without_randomness(model: nn.Module, training: bool) -> Iterator[None]:
    """Every dropout, layer drop and router noise at zero, in training mode or not; all of it is
    restored, buffers included.
    """
    before = list(_random_numbers(model))
    buffers = buffers_of(model)
    modes = {module: module.training for module in model.modules()}
    try:
        for module, name, _ in before:
            setattr(module, name, 0.0)
        model.train(training)
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
        for module, mode in modes.items():
            module.training = mode
        for name, buffer in model.named_buffers():
            if name in buffers and buffers[name].shape == buffer.shape:
                buffer.copy_(buffers[name])


@contextlib.contextmanager
def training(subject: Subject, checkpointing: bool, reentrant: bool = False) -> Iterator[None]:
    """Training mode without randomness, with or without gradient checkpointing, which is reentrant
    where a first pass without gradients and a second one in the backward pass are wanted.

    Raises:
        Unsupported: the model takes no gradient checkpointing.
    """
    model: Any = subject.model
    with without_randomness(model, training=True):
        if not checkpointing:
            yield
            return
        hooked = hasattr(model, HOOK)
        _enable(subject, reentrant)
        try:
            yield
        finally:
            _switch(model, "disable")()
            if (
                hasattr(model, HOOK) and not hooked
            ):  # disabling leaves the hook that enabling put on the embedding
                model.disable_input_require_grads()


def _switch(model: nn.Module, what: str) -> Callable[..., Any]:
    """The method that turns checkpointing on or off, under its name of today or that of releases
    before.
    """
    names = (f"activation_checkpointing_{what}", f"gradient_checkpointing_{what}")
    found = next((getattr(model, name) for name in names if hasattr(model, name)), None)
    if found is None or not getattr(model, "supports_gradient_checkpointing", False):
        raise Unsupported(f"{type(model).__name__} takes no gradient checkpointing")
    switch: Callable[..., Any] = found
    return switch


def _enable(subject: Subject, reentrant: bool) -> None:
    """Turn checkpointing on; what is computed again in the backward pass runs under the same
    numerics.
    """
    how: dict[str, Any] = {"use_reentrant": reentrant}
    if not reentrant:  # a reentrant one computes again within the backward pass of the caller
        how["context_fn"] = lambda: (contextlib.nullcontext(), subject.numerics())
    try:
        _switch(subject.model, "enable")(how)
    except REFUSALS as error:
        message = f"gradient checkpointing raises {first_line(error)}"
        raise classified(error, message) from error
