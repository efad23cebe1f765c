"""The options of probes in a suite: they must exist and have the type that the probe's dataclass
gives them.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from attncheck.core import registry
from attncheck.core.errors import SuiteError, UsageError, unknown
from attncheck.suite.source import Place, Source


def checked(
    source: Source, place: Place, name: str, options: Mapping[str, Any], home: Path
) -> dict[str, Any]:
    """The options of one probe, brought to the types of its fields. Loads the probe, and no model.

    Raises:
        SuiteError: the probe cannot be loaded, has no such option, or wants another type.
    """
    if not options:
        return {}
    try:
        kind = type(registry.load(name, home=home))
    except UsageError as error:
        raise source.error(place, str(error)) from error
    fields = [
        each for each in getattr(kind, "__dataclass_fields__", {}) if not _constant(kind, each)
    ]
    hints = typing.get_type_hints(kind)
    return {
        key: _one(source, (*place, key), name, key, value, fields, hints)
        for key, value in options.items()
    }


def _constant(kind: Any, name: str) -> bool:
    return "ClassVar" in str(kind.__dataclass_fields__[name].type)


def _one(
    source: Source,
    place: Place,
    name: str,
    key: str,
    value: Any,
    fields: list[str],
    hints: Mapping[str, Any],
) -> Any:
    if key not in fields:
        known = (
            unknown(f"option of probe {name}", key, fields)
            if fields
            else f"probe `{name}` has no options"
        )
        raise source.error(place, known, key=True)
    try:
        return TypeAdapter(hints[key]).validate_python(value)
    except ValidationError as error:
        raise _mistyped(source, place, key, error) from None


def _mistyped(source: Source, place: Place, key: str, error: ValidationError) -> SuiteError:
    first: Any = error.errors()[0]
    inner = tuple(part for part in first["loc"] if isinstance(part, int))
    return source.error((*place, *inner), f"option `{key}`: {_expectation(first['msg'])}")


def _expectation(message: str) -> str:
    return message.replace("Input should be", "expected").replace("'", "`")
