"""The installed probes (entry points of `attncheck.probes`), and those given as `FILE.py:Class`.

Names and documentation come from metadata and source text, so that listing probes loads neither
torch nor transformers.
"""

from __future__ import annotations

import fnmatch
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from attncheck.core.errors import UsageError, contained, first_line, unknown

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "attncheck.probes"
IMPLICIT = "attncheck.probes.implicit"
"""Probes that run on every target before the chosen ones. No option chooses or skips them, and a
report contains them only where they have a case.
"""
MEMBERS = ("name", "title", "cost", "needs", "controls", "measure", "judge")
FIRST = ("load", "future-token", "decode-paths", "position-reset", "document-leakage", "kv-repeat")


def installed(group: str = GROUP) -> dict[str, EntryPoint]:
    """The installed probes of a group by name, the ones that the tool began with first.

    Raises:
        UsageError: two distributions offer a probe of one name.
    """
    from importlib.metadata import entry_points

    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=group):
        other = found.get(entry.name)
        if other is not None and other.value != entry.value:
            raise UsageError(
                f"two probes are called `{entry.name}`: {other.value} and {entry.value}"
            )
        found[entry.name] = entry
    order = [name for name in FIRST if name in found] + sorted(set(found) - set(FIRST))
    return {name: found[name] for name in order}


def documented() -> dict[str, EntryPoint]:
    """The installed probes of both groups."""
    return installed() | installed(IMPLICIT)


def is_path(name: str) -> bool:
    """Whether a probe is given as `FILE.py:Class`."""
    return ".py:" in name


def select(wanted: Iterable[str] = (), skipped: Iterable[str] = ()) -> list[str]:
    """The names that `--probe` and `--skip` (globs) choose, in the order of the installed ones.

    Raises:
        UsageError: a pattern that matches nothing; the nearest valid name is offered.
    """
    names = list(installed())
    wanted, paths = [w for w in wanted if not is_path(w)], [w for w in wanted if is_path(w)]
    chosen = _matching(names, wanted) if wanted else ([] if paths else names)
    dropped = set(_matching(names, list(skipped)))
    return [name for name in chosen if name not in dropped] + paths


def _matching(names: list[str], patterns: list[str]) -> list[str]:
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise UsageError(unknown("probe", pattern, names))
    return [
        name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    ]


def load(name: str, options: Mapping[str, Any] | None = None, home: Path | None = None) -> Any:
    """The probe of this name, with its options.

    Raises:
        UsageError: an unknown name or option, or a file or class that does not exist.
    """
    kind = _from_file(name, home or Path.cwd()) if is_path(name) else _from_entry_point(name)
    missing = [member for member in MEMBERS if not hasattr(kind, member)]
    if missing:
        raise UsageError(
            f"`{name}` is not a probe: it lacks {', '.join(f'`{member}`' for member in missing)}"
        )
    return _with_options(name, kind, dict(options or {}))


def _with_options(name: str, kind: Any, options: dict[str, Any]) -> Any:
    valid = set(getattr(kind, "__dataclass_fields__", {}))
    for option in options:
        if option not in valid:
            raise UsageError(
                unknown(f"option of probe {name}", option, valid)
                if valid
                else f"probe `{name}` has no options"
            )
    return kind(**options)


def _from_entry_point(name: str) -> Any:
    entries = documented()
    if name not in entries:
        raise UsageError(unknown("probe", name, installed()))
    try:
        with contained():
            return entries[name].load()
    except Exception as error:
        raise UsageError(
            f"probe `{name}` ({entries[name].value}) cannot be loaded: {first_line(error)}"
        ) from error


def _from_file(name: str, home: Path) -> Any:
    file, _, attribute = name.rpartition(":")
    module = import_file(home / file)
    if not hasattr(module, attribute):
        raise UsageError(f"{file} defines no `{attribute}`")
    return getattr(module, attribute)


def import_file(path: Path) -> ModuleType:
    """Import a file as a module of its own.

    Raises:
        UsageError: no such file, or it raises while it is imported.
    """
    if not os.path.isfile(path):
        raise UsageError(f"no such file: {path}")
    from importlib.util import module_from_spec, spec_from_file_location

    name = f"attncheck_file_{path.stem}_{abs(hash(path.resolve()))}"
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"not a Python file: {path}")
    module = module_from_spec(spec)
    # Frozen dataclasses with postponed annotations look their module up while the body runs.
    sys.modules[name] = module
    try:
        with contained():
            spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise UsageError(f"{path} raises while it is imported: {first_line(error)}") from error
    return module


def documentation(name: str) -> str:
    """A probe's module docstring, read from its source without importing it.

    Raises:
        UsageError: unknown name.
    """
    entries = documented()
    if name not in entries:
        raise UsageError(unknown("probe", name, entries))
    return _docstring(entries[name].module)


def headlines() -> dict[str, str]:
    """The first line of each installed probe's documentation, by name."""
    return {
        name: _docstring(entry.module).partition("\n")[0] for name, entry in installed().items()
    }


def _docstring(module: str) -> str:
    import ast
    from importlib.util import find_spec

    package, _, _ = module.partition(".")
    root = find_spec(package)
    if root is None or root.origin is None:
        raise UsageError(f"the source of `{module}` cannot be found")
    path = Path(root.origin).parent.joinpath(*module.split(".")[1:])
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
