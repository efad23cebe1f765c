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
from attncheck.suite.load import Part, SuiteModel, expectation
from attncheck.suite.plan import matches_any, matching
from attncheck.suite.schema import ProbeEntry
from attncheck.suite.source import Place, YamlSource


@final
@dataclass(frozen=True)
class SuiteProbe:
    """A probe of a suite with its options and tags."""

    name: str
    options: Mapping[str, Any]
    tags: frozenset[str]


def probes_of(model: SuiteModel) -> list[SuiteProbe]:
    """The probes of one model, without those to skip, with its own options over the suite's."""
    owner, entries, place = _probe_list(model)
    found: dict[str, SuiteProbe] = {}
    for position, each in enumerate(entries):
        for probe in _named(owner, (*place, position), each, model.home):
            found[probe.name] = probe
    if not entries:
        found = {name: SuiteProbe(name, {}, frozenset()) for name in registry.installed()}
    skips: list[tuple[Part, Place, str]] = [
        (part, ("skip", i), glob) for part in model.parts for i, glob in enumerate(part.suite.skip)
    ]
    skips += [(model.part, model.place("skip", i), g) for i, g in enumerate(model.entry.skip)]
    for part, where, glob in skips:
        _matching(part, where, glob, found)
    globs = [glob for _, _, glob in skips]
    kept = [probe for probe in found.values() if not matches_any(globs, probe.name)]
    return _with_options_of_model(model, kept)


def _probe_list(model: SuiteModel) -> tuple[Part, list[ProbeEntry], Place]:
    if model.entry.probes is not None:
        return model.part, model.entry.probes, model.place("probes")
    for part in reversed(model.parts):
        if part.suite.probes is not None:
            return part, part.suite.probes, ("probes",)
    return model.part, [], ()


def _named(part: Part, place: Place, entry: ProbeEntry, home: Path) -> Iterator[SuiteProbe]:
    """The probes that one entry names, with its options."""
    if registry.is_path(entry.probe):
        file, _, attribute = entry.probe.rpartition(":")
        names = [f"{os.path.relpath(part.home / file, home)}:{attribute}"]
        if not os.path.isfile(part.home / file):
            raise part.error((*place, "probe"), f"no such file `{part.path(file)}`")
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
        raise part.error(place, unknown("probe", glob, registry.installed()))
    return names


def _with_options_of_model(model: SuiteModel, probes: list[SuiteProbe]) -> list[SuiteProbe]:
    for name, options in model.entry.options.items():
        names = [probe.name for probe in probes]
        if name not in names:
            message = unknown("probe of this model", name, names)
            raise model.error(message, "options", name, key=True)
        place = model.place("options", name)
        values = checked_options(model.part.source, place, name, options, model.home)
        probes = [
            replace(each, options={**each.options, **values}) if each.name == name else each
            for each in probes
        ]
    return probes


def checked_options(
    source: YamlSource, place: Place, name: str, options: Mapping[str, Any], home: Path
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


def _converted(source: YamlSource, place: Place, key: str, value: Any, kind: Any) -> Any:
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        inner = tuple(part for part in first["loc"] if isinstance(part, int))
        message = expectation(first["msg"]).replace("'", "`")
        raise source.error((*place, *inner), f"option `{key}`: {message}") from None
