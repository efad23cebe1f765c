"""Mutate the sample suites and check that each one is read, or refused in one line.

    python scripts/mutated_suites.py --count 2500

A seeded generator cuts, doubles, swaps and replaces keys, values, lines and bytes of
`sample_configs/*.yaml`. Each suite goes through the loader and the validator of `attncheck
validate` in this process. A traceback, or a message of more than one line or without the file's
name, is a failure; the exit code is 1 if there is one.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from attncheck.core.errors import AttncheckError, first_line
from attncheck.suite.expand import load_plan

SAMPLES = Path(__file__).parent.parent / "sample_configs"
ODD: tuple[object, ...] = (
    None,
    True,
    0,
    -1,
    10**30,
    1.5,
    float("nan"),
    float("inf"),
    "",
    " ",
    "nonsense",
    "*",
    "builtin:",
    "builtin:nope",
    "config:",
    "./nowhere.py:make",
    "x" * 5000,
    "nul\x00",
    "\x1b[31m",
    "é\u2028\U0001f642",
    "${UNSET_VARIABLE}",
    "${BAD",
    "2024-99-99",
    [],
    {},
    [[]],
    [None],
    {"": None},
    {"a": {"b": {"c": []}}},
)
TEXTS = (
    "\t",
    "\x00",
    "\ufeff",
    "{{",
    "]",
    "&a *a",
    "<<: *b",
    "!!python/object:os.system x",
    "- -",
    ":",
)
LONGEST = 1000
Holder = dict[Any, Any] | list[Any]
Mutation = Callable[[str, random.Random], str | bytes]


def data_replaced(text: str, draw: random.Random) -> str:
    """One value anywhere in the data is replaced by an odd one."""
    data = yaml.safe_load(text)
    places = list(_places(data))
    holder, key = draw.choice(places)
    holder[key] = draw.choice(ODD)
    return _dumped(data)


def key_renamed(text: str, draw: random.Random) -> str:
    """One key is renamed: a letter is lost, or it is another kind of value."""
    data = yaml.safe_load(text)
    holder, key = draw.choice([each for each in _places(data) if isinstance(each[0], dict)])
    value = holder.pop(key)
    names: list[Any] = [str(key)[1:], str(key) + "s", 7, None, "", "<<", str(key).upper()]
    holder[draw.choice(names)] = value
    return _dumped(data)


def part_moved(text: str, draw: random.Random) -> str:
    """One value takes the place of another one."""
    data = yaml.safe_load(text)
    (one, here), (other, there) = (draw.choice(list(_places(data))) for _ in range(2))
    other[there] = one[here]
    try:
        return _dumped(data)
    except RecursionError:  # it holds itself
        return text


def line_changed(text: str, draw: random.Random) -> str:
    """One line is lost, doubled, indented or moved."""
    lines = text.splitlines()
    at = draw.randrange(len(lines))
    line = lines.pop(at)
    other = draw.randrange(len(lines) + 1)
    ways: tuple[list[str], ...] = ([], [line, line], [f" {line}"], [line.strip()])
    if draw.random() < 0.25:
        lines.insert(other, line)
    else:
        lines[at:at] = draw.choice(ways)
    return "\n".join(lines)


def text_inserted(text: str, draw: random.Random) -> str:
    """Something that means a lot to YAML is put anywhere."""
    at = draw.randrange(len(text))
    return text[:at] + draw.choice(TEXTS) + text[at:]


def cut_off(text: str, draw: random.Random) -> str:
    """The file ends early."""
    return text[: draw.randrange(len(text))]


def bytes_changed(text: str, draw: random.Random) -> bytes:
    """A few bytes are others, which may be no UTF-8."""
    data = bytearray(text.encode())
    for _ in range(draw.randint(1, 4)):
        data[draw.randrange(len(data))] = draw.randrange(256)
    return bytes(data)


MUTATIONS: tuple[Mutation, ...] = (
    data_replaced,
    key_renamed,
    part_moved,
    line_changed,
    text_inserted,
    cut_off,
    bytes_changed,
)


def _places(data: Holder) -> Iterator[tuple[Any, Any]]:
    """Every place in data that holds a value, as its holder and key."""
    for key, value in list(data.items() if isinstance(data, dict) else enumerate(data)):
        yield data, key
        if isinstance(value, (dict, list)):
            yield from _places(value)


def _dumped(data: object) -> str:
    text: str = yaml.safe_dump(data, allow_unicode=True)
    return text


def mutated(number: int) -> tuple[str, str | bytes]:
    """The name of the mutation and the text of suite `number`; the same number gives the same."""
    draw = random.Random(number)
    text = draw.choice(sorted(SAMPLES.glob("*.yaml"))).read_text(encoding="utf-8")
    mutation = draw.choice(MUTATIONS)
    changed = mutation(text, draw)
    if isinstance(changed, str) and draw.random() < 0.3:
        changed = draw.choice((line_changed, text_inserted))(changed or " ", draw)
    return mutation.__name__, changed


def outcome(file: Path) -> str:
    """`read`, `refused`, or what is wrong with how this suite is met."""
    try:
        load_plan(file)
    except AttncheckError as error:
        message = str(error)
        if "\n" in message or len(message) > LONGEST or not message.startswith(str(file)):
            return f"no single line with the file: {message[:LONGEST]!r}"
        return "refused"
    except BaseException as error:
        return f"traceback: {first_line(error)}"
    return "read"


def tried(numbers: range) -> Iterator[tuple[int, str, str]]:
    """Each number with the name of its mutation and its outcome."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "suite.yaml"
        for number in numbers:
            name, changed = mutated(number)
            data = changed if isinstance(changed, bytes) else changed.encode("utf-8", "replace")
            file.write_bytes(data)
            yield number, name, outcome(file)


def main(arguments: Sequence[str] | None = None) -> int:
    """Try as many as asked; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=2500)
    parser.add_argument("--start", type=int, default=0)
    given = parser.parse_args(arguments)
    met: Counter[str] = Counter()
    for number, name, found in tried(range(given.start, given.start + given.count)):
        good = found in ("read", "refused")
        met[found if good else "failed"] += 1
        if not good:
            print(f"suite {number} ({name}): {found}", flush=True)
    print(f"{given.count} mutated suites: " + ", ".join(f"{n} {how}" for how, n in met.items()))
    return 1 if met["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
