"""A suite file with everything that it includes; each part keeps its file and positions."""

from __future__ import annotations

import os
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from pydantic import BaseModel, ValidationError

from attncheck.core.errors import SuiteError, nearest
from attncheck.suite.schema import ModelEntry, SuiteFile
from attncheck.suite.source import Place, YamlSource, read

NAMES = ("attncheck.yaml", "attncheck.yml")
MOST_FILES = 50
KINDS = {
    dict: "a mapping",
    list: "a list",
    str: "a string",
    bool: "a boolean",
    type(None): "null",
}


@final
@dataclass(frozen=True)
class Part:
    """One file of a suite: its content, and its source for error messages."""

    source: YamlSource
    suite: SuiteFile

    @property
    def home(self) -> Path:
        """The folder that relative paths are relative to."""
        return self.source.file.parent

    def error(self, place: Place, message: str, key: bool = False) -> SuiteError:
        """An error at a place in it."""
        return self.source.error(place, message, key=key)

    def path(self, text: str) -> str:
        """A path of this file, seen from the current folder."""
        return os.path.relpath(self.home / text) if not os.path.isabs(text) else text


@final
@dataclass(frozen=True)
class SuiteModel:
    """An entry of `models`, the file that it is in, and all files of the suite."""

    parts: tuple[Part, ...]
    part: Part
    index: int
    entry: ModelEntry

    @property
    def home(self) -> Path:
        """The folder of the suite."""
        return self.parts[-1].home

    def place(self, *keys: str | int) -> Place:
        """Where a key of the entry is in its file."""
        return ("models", self.index, *keys)

    def error(self, message: str, *keys: str | int, key: bool = False) -> SuiteError:
        """An error at a key of the entry."""
        return self.part.error(self.place(*keys), message, key=key)


def find_suite(start: Path | None = None) -> Path | None:
    """`attncheck.yaml` in a folder or above it, up to the root of the repository."""
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        for name in NAMES:
            if (folder / name).is_file():
                return folder / name
        if (folder / ".git").exists():
            return None
    return None


def load_parts(file: Path) -> tuple[Part, ...]:
    """The file and all that it includes, included files first.

    Raises:
        SuiteError: with file, line, column, what stands there and what was expected.
    """
    return tuple(_parts(file, ()))


def _parts(file: Path, around: tuple[Path, ...]) -> Iterator[Part]:
    source = read(file)
    part = Part(source, validated(source))
    inside = (*around, file.resolve())
    for index, name in enumerate(part.suite.include):
        place: Place = ("include", index)
        child = Path(part.path(name))
        if child.resolve() in inside:
            raise source.error(place, "a file cannot include itself, directly or through others")
        if not os.path.isfile(child):
            raise source.error(
                place, f"no such file `{child}`: expected a path relative to {part.home}"
            )
        if len(inside) > MOST_FILES:
            raise source.error(place, f"more than {MOST_FILES} files include one another")
        yield from _parts(child, inside)
    yield part


def validated(source: YamlSource) -> SuiteFile:
    """The content of one file, checked against the schema.

    Raises:
        SuiteError: the first error in the file.
    """
    if not isinstance(source.data, dict):
        raise source.error(
            (), f"expected a mapping with the key `models`, got {_kind(source.data)}"
        )
    try:
        return SuiteFile.model_validate(source.data)
    except ValidationError as error:
        first = min(error.errors(), key=lambda each: _order(source, each))
        raise _explained(source, first) from None


def _order(source: YamlSource, error: Any) -> tuple[bool, int, int]:
    """A mistyped key comes before the key that is missing because of it."""
    mark = source.mark(_place(source, error["loc"]))
    return error["type"] == "missing", mark.line, mark.column


def _place(source: YamlSource, location: tuple[Any, ...]) -> Place:
    """The place of pydantic's location, which has more levels than the short forms of entries."""
    place: Place = ()
    for part in location:
        if (*place, part) in source.values:
            place = (*place, part)
        elif part in ("options", "probe"):
            inner = [key for key in source.keys if key[:-1] == place]
            place = inner[0] if len(inner) == 1 else place
    return place


def _explained(source: YamlSource, error: Any) -> SuiteError:
    place = _place(source, error["loc"])
    if error["type"] == "extra_forbidden":
        return source.error(place, _unknown_key(error["loc"]), key=True)
    if error["type"] == "missing":
        return source.error(place, f"the key `{error['loc'][-1]}` is missing here")
    if error["loc"][-1:] == ("[key]",):
        return source.error((*place, error["loc"][-2]), f"unknown key: {_message(error)}", key=True)
    return source.error(place, _message(error))


def _message(error: Any) -> str:
    context = error.get("ctx") or {}
    expected = str(context.get("expected", "")).replace("'", "`")
    if expected and isinstance(error.get("input"), str):
        names = [each.strip(" `") for each in expected.replace(" or ", ",").split(",")]
        hint = nearest(error["input"], names)
        return f"expected {expected}" + (f"; {hint}" if hint else "")
    shown = isinstance(error.get("input"), str) or "error" in context
    return expectation(error["msg"]) + ("" if shown else f", got {_kind(error.get('input'))}")


def expectation(message: str) -> str:
    """A message of pydantic in our words."""
    return message.replace("Value error, ", "").replace("Input should be", "expected")


def _kind(value: Any) -> str:
    return KINDS.get(type(value), f"`{value}`")


def _unknown_key(location: tuple[Any, ...]) -> str:
    valid = sorted(_model_at(location[:-1]).model_fields)
    if hint := nearest(str(location[-1]), valid):
        return f"unknown key; {hint}"
    return f"unknown key: expected one of {', '.join(f'`{name}`' for name in valid)}"


def _model_at(location: tuple[Any, ...]) -> type[BaseModel]:
    """The pydantic model whose fields are the keys at a location."""
    model: type[BaseModel] = SuiteFile
    for part in location:
        if isinstance(part, str) and part in model.model_fields:
            model = _model_in(model.model_fields[part].annotation) or model
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model inside `list[Model] | None` and the like."""
    if (
        isinstance(annotation, type)
        and not isinstance(annotation, types.GenericAlias)
        and issubclass(annotation, BaseModel)
    ):
        return annotation
    return next((found for each in typing.get_args(annotation) if (found := _model_in(each))), None)
