"""YAML text as plain data that remembers the line and column of each value, for error messages."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

import yaml

from attncheck.core.errors import SuiteError

Place = tuple[str | int, ...]
VARIABLE = re.compile(r"\$\{([^}:]*)(?::-([^}]*))?\}")
PLAIN_TAGS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
UNREADABLE = (ValueError, KeyError, AttributeError, OverflowError, IndexError)
MOST_NODES = 50_000
SHOWN = 60


@final
@dataclass(frozen=True)
class Mark:
    """A position in a file, counted from 1, and the text there."""

    line: int = 1
    column: int = 1
    text: str = ""


@final
@dataclass(frozen=True)
class YamlSource:
    """One parsed file, with the position of each value and of each key in `data`."""

    file: Path
    data: Any = None
    values: dict[Place, Mark] = field(default_factory=dict)
    keys: dict[Place, Mark] = field(default_factory=dict)

    def mark(self, place: Place, key: bool = False) -> Mark:
        """The position of a place, or of the nearest place around it that has one."""
        first = self.keys if key else self.values
        for end in range(len(place), -1, -1):
            if place[:end] in first:
                return first[place[:end]]
            if place[:end] in self.values:
                return self.values[place[:end]]
        return Mark()

    def error(self, place: Place, message: str, key: bool = False) -> SuiteError:
        """An error at a place, in one line: `FILE:LINE:COLUMN: `text`: message`."""
        return self.error_at(self.mark(place, key), message)

    def error_at(self, mark: Mark, message: str) -> SuiteError:
        """An error at a position."""
        text = " ".join(mark.text.split())
        shown = f"`{text[:SHOWN]}{'…' if len(text) > SHOWN else ''}`: " if text else ""
        return SuiteError(
            f"{self.file}:{mark.line}:{mark.column}: {shown}{' '.join(message.split())}"
        )

    def where(self, place: Place) -> str:
        """`FILE:LINE` of a place."""
        return f"{self.file}:{self.mark(place).line}"


def read(file: Path) -> YamlSource:
    """Read and parse one file.

    Raises:
        SuiteError: the file cannot be read, is no YAML, repeats a key, or names an environment
            variable that is not set.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise SuiteError(f"{file}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        byte = f"byte {error.start} is {error.object[error.start]:#04x}"
        raise SuiteError(f"{file}:{line}:1: not UTF-8 text: {byte}") from error
    return parse(text, file)


def parse(text: str, file: Path) -> YamlSource:
    """Parse YAML text; the errors are those of `read`."""
    source = YamlSource(file)
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            message = "the file is empty: expected a mapping with the key `models`"
            raise source.error_at(Mark(), message)
        data = _Walk(loader, source).value(node, ())
    except yaml.reader.ReaderError as error:
        mark = Mark(text[: error.position].count("\n") + 1)
        message = f"a character that YAML does not allow: {error.character!r}"
        raise source.error_at(mark, message) from error
    except yaml.MarkedYAMLError as error:
        at = error.problem_mark or error.context_mark
        mark = Mark(at.line + 1, at.column + 1) if at is not None else Mark()
        message = f"not valid YAML: {error.problem or error.context}"
        raise source.error_at(mark, message) from error
    except RecursionError as error:
        raise source.error_at(Mark(), "nested too deeply") from error
    return replace(source, data=data)


@final
@dataclass
class _Walk:
    """A walk over the nodes of a file that collects their positions."""

    loader: yaml.SafeLoader
    source: YamlSource
    seen: int = 0
    around: tuple[int, ...] = ()

    def value(self, node: Any, place: Place) -> Any:
        """The data of one node, whose position is stored under `place`."""
        self.seen += 1
        mark = self.source.values[place] = _mark(node)
        if self.seen > MOST_NODES or id(node) in self.around:
            raise self.source.error_at(mark, "an alias that expands without end")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, mark)
        if node.tag not in PLAIN_TAGS:
            raise self.source.error_at(mark, f"unknown tag `{node.tag}`")
        before, self.around = self.around, (*self.around, id(node))
        if isinstance(node, yaml.MappingNode):
            found: Any = self._mapping(node, place)
        else:
            found = [self.value(each, (*place, index)) for index, each in enumerate(node.value)]
        self.around = before
        return found

    def _mapping(self, node: Any, place: Place) -> dict[str, Any]:
        self._refuse_repeats(node)
        self.loader.flatten_mapping(node)
        found: dict[str, Any] = {}
        for key, child in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self.source.error_at(_mark(key), "expected a plain string as key")
            # Keys that `<<` brings in come first, so that the mapping's own win.
            self.source.keys[(*place, key.value)] = _mark(key)
            found[key.value] = self.value(child, (*place, key.value))
        return found

    def _refuse_repeats(self, node: Any) -> None:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag.endswith(":merge"):
                continue
            mark = _mark(key)
            if key.value in lines:
                message = f"this key is repeated; it was first given in line {lines[key.value]}"
                raise self.source.error_at(mark, message)
            lines[key.value] = mark.line

    def _scalar(self, node: Any, mark: Mark) -> Any:
        try:
            found = self.loader.construct_object(node)
        except UNREADABLE as error:
            raise self.source.error_at(mark, f"not a valid YAML value: {error}") from error
        if not isinstance(found, str):
            return found
        return VARIABLE.sub(lambda match: self._variable(mark, *match.groups()), found)

    def _variable(self, mark: Mark, name: str, default: str | None) -> str:
        value = os.environ.get(name, default)
        if value is None:
            hint = f"`${{{name}:-VALUE}}` gives it a default"
            message = f"the environment variable `{name}` is not set ({hint})"
            raise self.source.error_at(mark, message)
        return value


def _mark(node: Any) -> Mark:
    text = node.value if isinstance(node, yaml.ScalarNode) else ""
    return Mark(node.start_mark.line + 1, node.start_mark.column + 1, text)
