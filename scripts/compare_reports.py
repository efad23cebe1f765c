"""Compare two runs of attncheck: same verdicts, same diagnoses, same locations?

    python scripts/compare_reports.py BEFORE AFTER

BEFORE and AFTER are two JSON reports of `attncheck run` (one model or a whole sweep), two folders
of them, or two outputs of `attncheck selftest`. Prints one line for each difference and a count;
exit code 1 if anything differs, 2 if an input cannot be read. Prose (summaries, notes, advice,
reasons of skips) and durations are not compared; `--numbers` compares max_abs, budget and value of
each case as well. Imports nothing of attncheck, so that it reads reports of any version.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

# What is compared: the path to a value in its run (target, probe, case ...) and the value.
Facts = dict[tuple[str, ...], object]

ABSENT = "(absent)"
NUMBERS = ("max_abs", "budget", "value")
COLUMNS = ("fault", "caught by", "named", "located")
FAULT_ROW = re.compile(r"[a-z][a-z0-9-]* +\S")


class Unreadable(Exception):
    """An input is neither a report, nor a folder of reports, nor a table of selftest."""


def main(arguments: list[str] | None = None) -> int:
    """Compare the two inputs of the command line; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path, help="report, folder of reports or selftest output")
    parser.add_argument("after", type=Path, help="the same of the other version")
    parser.add_argument("--numbers", action="store_true", help="compare " + ", ".join(NUMBERS))
    parser.add_argument(
        "--numbers-tolerance",
        type=float,
        default=0.0,
        metavar="RATIO",
        help="relative difference that --numbers accepts (default 0: exactly equal)",
    )
    given = parser.parse_args(arguments)
    try:
        before, after = (read(path, given.numbers) for path in (given.before, given.after))
    except Unreadable as reason:
        print(f"compare_reports: {reason}", file=sys.stderr)
        return 2
    found = differences(before, after, given.numbers_tolerance)
    for line in found:
        print(line)
    values = len(before.keys() | after.keys())
    print(f"{len(found)} difference{'' if len(found) == 1 else 's'} in {values} compared values")
    return 1 if found else 0


def differences(before: Facts, after: Facts, tolerance: float = 0.0) -> list[str]:
    """One line for each value that differs; what lies below an absent part is not repeated."""
    lines: list[str] = []
    absent: list[tuple[str, ...]] = []
    for path in [*before, *(path for path in after if path not in before)]:
        left, right = before.get(path, ABSENT), after.get(path, ABSENT)
        if _equal(left, right, tolerance) or any(path[: len(part)] == part for part in absent):
            continue
        if path[-1] == "verdict" and ABSENT in (left, right):
            absent.append(path[:-1])
        lines.append(f"{' | '.join(path)}: {_shown(left)} -> {_shown(right)}")
    return lines


def read(path: Path, numbers: bool = False) -> Facts:
    """The comparable facts of a report, a folder of reports or an output of selftest.

    Raises:
        Unreadable: the path is none of these.
    """
    if path.is_dir():
        files = sorted(path.glob("*.json"))
        if not files:
            raise Unreadable(f"{path}: no .json file in this folder")
        return facts_of_targets((t for file in files for t in _targets(file)), numbers)
    if path.suffix == ".json":
        return facts_of_targets(_targets(path), numbers)
    return facts_of_selftest(_text(path), path)


def facts_of_targets(targets: Iterable[Mapping[str, Any]], numbers: bool = False) -> Facts:
    """Facts of the entries of `targets`: a target that occurs twice is numbered in its order."""
    facts: Facts = {}
    for name, target in _numbered(targets, "target"):
        facts[name, "verdict"] = target["verdict"]
        for probe, result in _numbered(target["results"], "probe"):
            for key, value in _facts_of_result(result, numbers):
                facts[(name, probe, *key)] = value
    return facts


def _facts_of_result(
    result: Mapping[str, Any], numbers: bool
) -> Iterator[tuple[tuple[str, ...], object]]:
    yield ("verdict",), result["verdict"]
    for part, keys in (("diagnosis", ("fault", "how")), ("location", ("module", "layer"))):
        for key in keys:
            yield (part, key), (result.get(part) or {}).get(key)
    for fault, control in _numbered(result.get("controls", []), "fault"):
        yield ("control " + fault, "detected"), control["detected"]
    for name, case in _numbered(result.get("cases", []), "name"):
        yield ("case " + name, "verdict"), case["verdict"]
        for key in NUMBERS if numbers else ():
            yield ("case " + name, key), case.get(key)


def facts_of_selftest(text: str, source: Path) -> Facts:
    """Facts of a printed table of selftest: for each fault who caught, named and located it.

    Raises:
        Unreadable: the text holds no such table.
    """
    facts: Facts = {}
    starts: list[int] = []
    target = previous = ""
    for line in text.splitlines():
        if line.startswith("fault ") and all(column in line for column in COLUMNS):
            target, starts = previous, [line.index(column) for column in COLUMNS]
        elif starts and FAULT_ROW.match(line):
            fault, cells = _selftest_row(line, starts)
            facts |= {(target, fault, column): cell for column, cell in cells.items()}
        previous = line.strip()
    if not facts:
        raise Unreadable(f"{source}: neither a JSON report nor a table of `attncheck selftest`")
    return facts


def _selftest_row(line: str, starts: list[int]) -> tuple[str, dict[str, str]]:
    fault, rest = line.split(maxsplit=1)
    if rest.startswith("- "):
        return fault, {"caught by": "not injected"}
    caught, named = line[starts[1] : starts[2]], line[starts[2] : starts[3]]
    # The last word is the duration; a long module name pushes it out of its column.
    located = line[starts[3] :].split()[:-1]
    return fault, {
        "caught by": caught.strip(),
        "named": named.strip(),
        "located": " ".join(located),
    }


def _targets(file: Path) -> list[dict[str, Any]]:
    try:
        report = json.loads(_text(file))
    except json.JSONDecodeError as reason:
        raise Unreadable(f"{file}: no valid JSON: {reason}") from reason
    if not isinstance(report, dict) or not isinstance(report.get("targets"), list):
        raise Unreadable(f"{file}: no report of `attncheck run` (it has no list `targets`)")
    return list(report["targets"])


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as reason:
        raise Unreadable(f"{file}: {reason}") from reason


def _numbered(
    entries: Iterable[Mapping[str, Any]], key: str
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    seen: Counter[str] = Counter()
    for entry in entries:
        name = str(entry[key])
        seen[name] += 1
        yield (name if seen[name] == 1 else f"{name} #{seen[name]}"), entry


def _equal(left: object, right: object, tolerance: float) -> bool:
    if isinstance(left, float) and isinstance(right, (int, float)):
        return left == right or abs(left - right) <= tolerance * max(abs(left), abs(right))
    return left == right


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


if __name__ == "__main__":
    sys.exit(main())
