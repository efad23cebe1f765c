"""The faults by name, found by listing the files of this package.

A fault called `some-name` is the file `GROUP/some_name.py`. Names and documentation are read from
the files' names and source, so that listing faults loads neither torch nor transformers.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from attncheck.core.errors import UsageError, unknown

if TYPE_CHECKING:
    from attncheck.faults.engine.fault import Fault
    from attncheck.faults.engine.hypothesis import Hypothesis
    from attncheck.faults.engine.trusted import Trusted
    from attncheck.model.forward_spec import ForwardSpec
    from attncheck.model.provenance import Provenance

HOME = Path(__file__).parent
HEADINGS = ("What it is", "How it looks", "Where it comes from", "What to change")
LEGEND = "\nAxes: "
"""Begins the last paragraph of a docstring: what the suffixes of tensor names mean."""


@cache
def _files() -> dict[str, Path]:
    """The file of each fault."""
    files = (path for path in sorted(HOME.glob("*/[!_]*.py")) if path.parent.name != "engine")
    return {path.stem.replace("_", "-"): path for path in files}


def names() -> tuple[str, ...]:
    """The name of every fault, group by group."""
    return tuple(_files())


def fault(name: str) -> Fault:
    """The fault of this name, loaded.

    Raises:
        UsageError: no fault has this name; the nearest one is offered.
    """
    return _loaded(path_of(name))


@cache
def _loaded(path: Path) -> Fault:
    found: Fault = import_module(f"{__package__}.{path.parent.name}.{path.stem}").FAULT
    return found


def path_of(name: str) -> Path:
    """The file of one fault.

    Raises:
        UsageError: no fault has this name; the nearest one is offered.
    """
    if name not in _files():
        raise UsageError(unknown("fault", name, names()))
    return _files()[name]


def documentation(name: str) -> str:
    """The page of one fault: its module docstring, without the legend of tensor axes.

    Raises:
        UsageError: no fault has this name; the nearest one is offered.
    """
    text = ast.get_docstring(ast.parse(path_of(name).read_text(encoding="utf-8"))) or ""
    return f"{name}\n\n{text.partition(LEGEND)[0].rstrip()}\n"


def advice(name: str) -> str:
    """What to change, in a sentence or two; empty for a name that no fault has (a repair)."""
    if name not in _files():
        return ""
    return " ".join(documentation(name).partition(f"\n{HEADINGS[-1]}\n")[2].split())


def hypotheses(
    trusted: Trusted,
    spec: ForwardSpec,
    provenance: Provenance | None = None,
    groups: frozenset[str] | None = None,
) -> Iterator[Hypothesis]:
    """Every hypothesis of these groups of faults (None for all) that fits this forward, in the
    order of their ranks.

    Of several that predict the same logits the first one is named. Each is made when its turn
    comes, since making some of them takes forwards.
    """
    from attncheck.faults.engine.hypothesis import WrongForward

    forward = WrongForward(trusted, spec, provenance)
    asked = [name for name, path in _files().items() if not groups or path.parent.name in groups]
    ranked = sorted((rank, name) for name in asked for rank in fault(name).hypotheses)
    for rank, name in ranked:
        for hypothesis in fault(name).hypotheses[rank](forward):
            yield replace(hypothesis, fault=name)
