"""What a kind of healthy model is: a factory, the precision it is checked in, and how."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from conftest import SMALL, tiny_llama

Factory = Callable[[], Any]
KINDS: dict[str, Kind] = {}


@dataclass(frozen=True)
class Kind:
    """A healthy model: `build` makes it, or it and its tokenizer; `needs` are packages.

    `known` are probes that rightly find something: what the library does, or the design.
    """

    name: str
    build: Factory
    dtype: str = "auto"
    settings: dict[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    fast: bool = False
    known: tuple[str, ...] = ()

    def made(self) -> tuple[Any, Any]:
        """The model and its tokenizer, or None.

        Raises:
            Skipped: a package is missing.
        """
        for package in self.needs:
            if importlib.util.find_spec(package.partition(".")[0]) is None:
                pytest.skip(f"{package} is not installed")
        made = self.build()
        return made if isinstance(made, tuple) else (made, None)


def kind(
    dtype: str = "float32",
    *,
    needs: tuple[str, ...] = (),
    fast: bool = False,
    known: tuple[str, ...] = (),
    **settings: Any,
) -> Callable[[Factory], Factory]:
    """Registers a factory under its name."""

    def register(build: Factory) -> Factory:
        name = build.__name__.replace("_", "-")
        assert name not in KINDS, name
        KINDS[name] = Kind(name, build, dtype, settings, needs, fast, known)
        return build

    return register


__all__ = ["KINDS", "SMALL", "Kind", "kind", "tiny_llama"]
