"""The probes of one model in a suite, with their options checked and merged."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, final

from attncheck.core import registry
from attncheck.core.errors import unknown
from attncheck.suite.load import Part
from attncheck.suite.options import checked
from attncheck.suite.schema import ModelEntry, ProbeEntry
from attncheck.suite.source import Place


@final
@dataclass(frozen=True)
class Chosen:
    """A probe, its options, and the tags that it carries in this suite."""

    name: str
    options: Mapping[str, Any]
    tags: frozenset[str]


def probes_of(
    parts: tuple[Part, ...], part: Part, index: int, entry: ModelEntry, home: Path
) -> list[Chosen]:
    """The probes of one model: its own or the suite's or all, less what is skipped, with options
    merged.
    """
    owner, entries, place = _probe_list(parts, part, index, entry)
    found: dict[str, Chosen] = {}
    for position, each in enumerate(entries):
        for chosen in _named(owner, (*place, position), each, home):
            found[chosen.name] = chosen
    if not entries:
        found = {name: Chosen(name, {}, frozenset()) for name in registry.installed()}
    skips: list[tuple[Part, Place, str]] = [
        (each, ("skip", i), glob) for each in parts for i, glob in enumerate(each.suite.skip)
    ]
    skips += [(part, ("models", index, "skip", i), glob) for i, glob in enumerate(entry.skip)]
    for skipper, where, glob in skips:
        _known(skipper, where, glob, found)
    kept = [
        each
        for each in found.values()
        if not any(fnmatchcase(each.name, glob) for _, _, glob in skips)
    ]
    return _overridden(part, index, entry, kept, home)


def _probe_list(
    parts: tuple[Part, ...], part: Part, index: int, entry: ModelEntry
) -> tuple[Part, list[ProbeEntry], Place]:
    if entry.probes is not None:
        return part, entry.probes, ("models", index, "probes")
    given = [each for each in parts if each.suite.probes is not None]
    return (given[-1], given[-1].suite.probes or [], ("probes",)) if given else (part, [], ())


def _named(part: Part, place: Place, entry: ProbeEntry, home: Path) -> Iterator[Chosen]:
    """The probes that one entry names, with the options that stand there."""
    if registry.is_path(entry.probe):
        file, _, attribute = entry.probe.rpartition(":")
        names = [f"{os.path.relpath(part.home / file, home)}:{attribute}"]
        if not (part.home / file).is_file():
            raise part.source.error((*place, "probe"), f"no such file `{part.path(file)}`")
    else:
        names = _known(part, (*place, "probe"), entry.probe, ())
    inner = "options" if (*place, "options") in part.source.keys else entry.probe
    for name in names:
        yield Chosen(
            name,
            checked(part.source, (*place, inner), name, entry.options, home),
            frozenset(entry.tags),
        )


def _known(part: Part, place: Place, glob: str, also: Iterable[str]) -> list[str]:
    """The installed probes (and those of `also`) that a glob names; none is a complaint."""
    names = [*registry.installed(), *also]
    matching = [name for name in names if fnmatchcase(name, glob)]
    if not matching:
        raise part.source.error(place, unknown("probe", glob, registry.installed()))
    return list(dict.fromkeys(matching))


def _overridden(
    part: Part, index: int, entry: ModelEntry, chosen: list[Chosen], home: Path
) -> list[Chosen]:
    """Options that a model gives to some of its probes, over those of the suite."""
    for name, options in entry.options.items():
        place: Place = ("models", index, "options", name)
        if name not in [each.name for each in chosen]:
            raise part.source.error(
                place,
                unknown("probe of this model", name, [each.name for each in chosen]),
                key=True,
            )
        values = checked(part.source, place, name, options, home)
        chosen = [
            replace(each, options={**each.options, **values}) if each.name == name else each
            for each in chosen
        ]
    return chosen
