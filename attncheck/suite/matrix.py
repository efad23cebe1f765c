"""The settings of one model in a suite: all combinations of the axes but the excluded ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attncheck.core.errors import UsageError, unknown
from attncheck.core.settings import Settings
from attncheck.suite.load import Part, SuiteModel
from attncheck.suite.schema import SettingsEntry
from attncheck.suite.source import Place

AXES = ("attn", "dtype", "device", "cache", "length", "seed")
MOST_COMBINATIONS = 1_000


def combinations(model: SuiteModel) -> Iterator[Settings]:
    """Every combination of the axes; the model's own settings override those of the suite."""
    merged: dict[str, Any] = {}
    for part in model.parts:
        merged |= _given(part, part.suite.settings, ("settings",))
    merged |= _given(model.part, model.entry.settings, model.place("settings"))
    for position, excluded in enumerate(model.entry.exclude):
        check_names(model.part, model.place("exclude", position), excluded)
    axes = [axis for axis in AXES if axis in merged]
    count = math.prod(len(merged[axis]) for axis in axes)
    if count > MOST_COMBINATIONS:
        raise model.error(f"{count} combinations of settings; {MOST_COMBINATIONS} at most")
    fixed = {name: value for name, value in merged.items() if name not in AXES}
    for values in itertools.product(*(merged[axis] for axis in axes)):
        one: dict[str, Any] = {**dict(zip(axes, values, strict=True)), **fixed}
        if not any(matches(one, excluded) for excluded in model.entry.exclude):
            chosen: dict[str, Any] = {k: None if v == "default" else v for k, v in one.items()}
            yield _settings(model, chosen)


def _settings(model: SuiteModel, chosen: dict[str, Any]) -> Settings:
    try:
        return Settings(**chosen)
    except UsageError as error:
        raise model.error(str(error)) from error


def _given(part: Part, settings: SettingsEntry, place: Place) -> dict[str, Any]:
    given = settings.model_dump(include=settings.model_fields_set, exclude_none=True)
    for axis in AXES:
        if given.get(axis) == []:
            message = f"`{axis}` is an empty list: leave it out, or name at least one"
            raise part.error((*place, axis), message)
    prompt = given.get("prompt", "")
    if prompt.startswith("@"):
        file = part.path(prompt[1:])
        try:
            given["prompt"] = Path(file).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            message = f"the prompt file `{file}` cannot be read"
            raise part.error((*place, "prompt"), message) from error
    return given


def check_names(part: Part, place: Place, settings: Mapping[str, Any]) -> None:
    """Check the names in a pattern of settings.

    Raises:
        SuiteError: a name that is no setting.
    """
    for name in settings:
        if name not in SettingsEntry.model_fields:
            message = unknown("setting", name, SettingsEntry.model_fields)
            raise part.error((*place, name), message, key=True)


def matches(settings: Mapping[str, Any], pattern: Mapping[str, Any]) -> bool:
    """Whether settings match a pattern; a setting that the pattern leaves out may be anything."""
    return all(
        settings.get(name) in (value if isinstance(value, list) else [value])
        for name, value in pattern.items()
    )
