"""The settings of one model in a suite: all combinations of the axes but the excluded ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attncheck.core.errors import unknown
from attncheck.core.settings import Settings
from attncheck.suite.load import Part
from attncheck.suite.schema import ModelEntry, SettingsEntry
from attncheck.suite.source import Place

AXES = ("attn", "dtype", "device", "cache", "length", "seed")
MOST_COMBINATIONS = 1_000


def combinations(
    parts: tuple[Part, ...], part: Part, index: int, entry: ModelEntry
) -> Iterator[Settings]:
    """Every combination of the axes; the model's own settings override those of the suite."""
    entries = [(each, each.suite.settings, ("settings",)) for each in parts]
    merged: dict[str, Any] = {}
    for owner, settings, place in [*entries, (part, entry.settings, ("models", index, "settings"))]:
        merged.update(_given(owner, settings, place))
    for position, excluded in enumerate(entry.exclude):
        check_names(part, ("models", index, "exclude", position), excluded)
    axes = [axis for axis in AXES if axis in merged]
    count = math.prod(len(merged[axis]) for axis in axes)
    if count > MOST_COMBINATIONS:
        raise part.source.error(
            ("models", index), f"{count} combinations of settings; {MOST_COMBINATIONS} at most"
        )
    fixed = {name: value for name, value in merged.items() if name not in AXES}
    for values in itertools.product(*(merged[axis] for axis in axes)):
        one: dict[str, Any] = {**dict(zip(axes, values, strict=True)), **fixed}
        if not any(matches(one, excluded) for excluded in entry.exclude):
            chosen: dict[str, Any] = {k: None if v == "default" else v for k, v in one.items()}
            yield Settings(**chosen)


def _given(part: Part, settings: SettingsEntry, place: Place) -> dict[str, Any]:
    given = {
        name: getattr(settings, name)
        for name in settings.model_fields_set
        if getattr(settings, name) is not None
    }
    for axis in AXES:
        if given.get(axis) == []:
            raise part.source.error(
                (*place, axis), f"`{axis}` is an empty list: leave it out, or name at least one"
            )
    prompt = given.get("prompt", "")
    if prompt.startswith("@"):
        given["prompt"] = _prompt(part, (*place, "prompt"), prompt[1:])
    return given


def _prompt(part: Part, place: Place, name: str) -> str:
    try:
        return Path(part.path(name)).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise part.source.error(
            place, f"the prompt file `{part.path(name)}` cannot be read"
        ) from error


def check_names(part: Part, place: Place, settings: Mapping[str, Any]) -> None:
    """Check the names in a pattern of settings.

    Raises:
        SuiteError: a name that is no setting.
    """
    for name in settings:
        if name not in SettingsEntry.model_fields:
            raise part.source.error(
                (*place, name), unknown("setting", name, SettingsEntry.model_fields), key=True
            )


def matches(settings: Mapping[str, Any], pattern: Mapping[str, Any]) -> bool:
    """Whether settings match a pattern; a setting that the pattern leaves out may be anything."""
    return all(
        settings.get(name) in (value if isinstance(value, list) else [value])
        for name, value in pattern.items()
    )
