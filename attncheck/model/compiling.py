"""A model under torch.compile for a while, and whether anything can be compiled here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn

from attncheck.core.errors import first_line


def why_not_compiled(backend: str, device: torch.device) -> str | None:
    """Why nothing can be compiled here, found out by compiling a sum; None where that works."""
    try:
        torch.compile(lambda value: value + value.sin().sum(), backend=backend)(
            torch.ones(3, device=device)
        )
    except Exception as error:
        return f"torch.compile ({backend}) does not work here: {first_line(error)}"
    return None


@contextlib.contextmanager
def compiled(model: nn.Module, backend: str) -> Iterator[None]:
    """The forward of a model compiled, for lengths of any size, for a while."""
    before = model.__dict__.get("forward")
    model.forward = torch.compile(model.forward, backend=backend, dynamic=True)
    try:
        yield
    finally:
        del model.forward
        if before is not None:
            model.forward = before
        torch.compiler.reset()
