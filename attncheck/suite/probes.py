"""The probes of one model in a suite: its own, the suite's or all, with checked options."""

from __future__ import annotations

import os
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from pydantic import TypeAdapter, ValidationError

from attncheck.core import registry
from attncheck.core.errors import UsageError, unknown
from attncheck.suite.load import Part, expectation
from attncheck.suite.plan import matches_any, matching
from attncheck.suite.schema import ModelEntry, ProbeEntry
from attncheck.suite.source import Place, Source


@final
@dataclass(frozen=True)
class SuiteProbe:
    """A probe of a suite with its options and tags."""

    name: str
    options: Mapping[str, Any]
    tags: frozenset[str]


def probes_of(
    parts: tuple[Part, ...], part: Part, index: int, entry: ModelEntry, home: Path
) -> list[SuiteProbe]:
    """The probes of one model, without those to skip, with its own options over the suite's."""
    owner, entries, place = _probe_list(parts, part, index, entry)
    found: dict[str, SuiteProbe] = {}
    for position, each in enumerate(entries):
        for probe in _named(owner, (*place, position), each, home):
            found[probe.name] = probe
    if not entries:
        found = {name: SuiteProbe(name, {}, frozenset()) for name in registry.installed()}
    skips: list[tuple[Part, Place, str]] = [
        (each, ("skip", i), glob) for each in parts for i, glob in enumerate(each.suite.skip)
    ]
    skips += [(part, ("models", index, "skip", i), glob) for i, glob in enumerate(entry.skip)]
    for owner, where, glob in skips:
        _matching(owner, where, glob, found)
    globs = [glob for _, _, glob in skips]
    kept = [probe for probe in found.values() if not matches_any(globs, probe.name)]
    return _with_options_of_model(part, index, entry, kept, home)


def _probe_list(
    parts: tuple[Part, ...], part: Part, index: int, entry: ModelEntry
) -> tuple[Part, list[ProbeEntry], Place]:
    if entry.probes is not None:
        return part, entry.probes, ("models", index, "probes")
    given = [each for each in parts if each.suite.probes is not None]
    return (given[-1], given[-1].suite.probes or [], ("probes",)) if given else (part, [], ())


def _named(part: Part, place: Place, entry: ProbeEntry, home: Path) -> Iterator[SuiteProbe]:
    """The probes that one entry names, with its options."""
    if registry.is_path(entry.probe):
        file, _, attribute = entry.probe.rpartition(":")
        names = [f"{os.path.relpath(part.home / file, home)}:{attribute}"]
        if not (part.home / file).is_file():
            raise part.source.error((*place, "probe"), f"no such file `{part.path(file)}`")
    else:
        names = _matching(part, (*place, "probe"), entry.probe)
    key = "options" if (*place, "options") in part.source.keys else entry.probe
    for name in names:
        options = checked_options(part.source, (*place, key), name, entry.options, home)
        yield SuiteProbe(name, options, frozenset(entry.tags))


def _matching(part: Part, place: Place, glob: str, others: Iterable[str] = ()) -> list[str]:
    """The installed probes, and those of `others`, that a glob names; none is an error."""
    names = matching(glob, dict.fromkeys([*registry.installed(), *others]))
    if not names:
        raise part.source.error(place, unknown("probe", glob, registry.installed()))
    return names


def _with_options_of_model(
    part: Part, index: int, entry: ModelEntry, probes: list[SuiteProbe], home: Path
) -> list[SuiteProbe]:
    for name, options in entry.options.items():
        place: Place = ("models", index, "options", name)
        names = [probe.name for probe in probes]
        if name not in names:
            raise part.source.error(place, unknown("probe of this model", name, names), key=True)
        values = checked_options(part.source, place, name, options, home)
        probes = [
            replace(each, options={**each.options, **values}) if each.name == name else each
            for each in probes
        ]
    return probes


def checked_options(
    source: Source, place: Place, name: str, options: Mapping[str, Any], home: Path
) -> dict[str, Any]:
    """The options of one probe, converted to the types of its dataclass. Loads no model.

    Raises:
        SuiteError: the probe cannot be loaded, has no such option, or needs another type.
    """
    if not options:
        return {}
    try:
        kind = type(registry.load(name, home=home))
    except UsageError as error:
        raise source.error(place, str(error)) from error
    hints = typing.get_type_hints(kind)
    fields = [
        field.name
        for field in getattr(kind, "__dataclass_fields__", {}).values()
        if "ClassVar" not in str(field.type)
    ]
    for key in options:
        if key not in fields:
            no_options = f"probe `{name}` has no options"
            message = unknown(f"option of probe {name}", key, fields) if fields else no_options
            raise source.error((*place, key), message, key=True)
    return {
        key: _converted(source, (*place, key), key, value, hints[key])
        for key, value in options.items()
    }


def _converted(source: Source, place: Place, key: str, value: Any, kind: Any) -> Any:
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        inner = tuple(part for part in first["loc"] if isinstance(part, int))
        message = expectation(first["msg"]).replace("'", "`")
        raise source.error((*place, *inner), f"option `{key}`: {message}") from None
