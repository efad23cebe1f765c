"""One report from the reports of several runs: the shards of one run, or the jobs of a CI matrix.

What is joined counts as if one run had found it. What cannot be joined rightly is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from attncheck.core.errors import INTERRUPTED, STOPPED, USAGE, UsageError, first_line
from attncheck.report.model import Report, TargetReport, exit_code
from attncheck.report.record import from_json

LIBRARIES = ("torch", "transformers")
"""Versions that decide what a model does: reports of several of them are no one report."""


@final
@dataclass(frozen=True)
class SavedReport:
    """A report, and the file that it stands in."""

    path: Path
    report: Report


def read_reports(paths: Iterable[Path]) -> list[SavedReport]:
    """The reports in files; a folder stands for every `.json` file in it.

    Raises:
        UsageError: a file that is no report, or a folder without one.
    """
    return [SavedReport(file, _read(file)) for path in paths for file in _files(path)]


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(path.rglob("*.json"))
    if not found:
        raise UsageError(f"{path}: the folder holds no report (.json)")
    return found


def _read(path: Path) -> Report:
    try:
        return from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or first_line(error)
        raise UsageError(f"{path}: not a report of this tool ({reason})") from error


def merged(saved: Sequence[SavedReport], command: str = "") -> Report:
    """One report. Of shards the targets stand in the order of the whole run; `incomplete` says
    which shards are missing or were stopped.

    Raises:
        UsageError: in one line, why these cannot be one report.
    """
    _check_alike(saved)
    sharded = [each for each in saved if each.report.shard is not None]
    if sharded:
        _check_shards(saved)
    else:
        _check_matrix(saved)
    first = saved[0].report
    targets = [target for each in saved for target in each.report.targets]
    every = (note for each in saved for note in each.report.notes)
    report = Report(
        attncheck=first.attncheck,
        command=command,
        started=min(each.report.started for each in saved),
        seconds=sum(each.report.seconds for each in saved),
        environment=_environment([each.report.environment for each in saved]),
        targets=tuple(_unplaced(sorted(targets, key=lambda target: target.place))),
        notes=tuple(dict.fromkeys(note for note in every if not _of_empty_shard(note))),
        fail_on=first.fail_on,
        accepted_skips=first.accepted_skips,
        incomplete="; ".join([*_stopped(saved), *missing(saved)]),
    )
    return replace(report, exit_code=merged_exit_code(report, saved))


def merged_exit_code(report: Report, saved: Sequence[SavedReport]) -> int:
    """The exit code of one run with these findings: 2 with a shard missing, that of a stopped part
    where one was stopped.
    """
    found = exit_code(report, frozenset(report.fail_on))
    if missing(saved) or found == USAGE:
        return USAGE
    stopped = [each.report.exit_code for each in saved if each.report.incomplete]
    codes = [code if code in STOPPED else INTERRUPTED for code in stopped]
    return max(codes, default=found)


def missing(saved: Sequence[SavedReport]) -> list[str]:
    """A line for the shards that are not there, if any."""
    shards = [each.report.shard for each in saved if each.report.shard is not None]
    if not shards:
        return []
    there, count = {shard.index for shard in shards}, shards[0].count
    lost = [f"{index}/{count}" for index in range(1, count + 1) if index not in there]
    return [f"shard{'s' if len(lost) > 1 else ''} {', '.join(lost)} missing"] if lost else []


def _stopped(saved: Sequence[SavedReport]) -> list[str]:
    stopped = [each for each in saved if each.report.incomplete]
    return [f"{each.report.incomplete} in {_name(each)}" for each in stopped]


def _name(saved: SavedReport) -> str:
    shard = saved.report.shard
    return str(saved.path) if shard is None else f"shard {shard}"


def _of_empty_shard(note: str) -> bool:
    return note.startswith("shard ") and " has none of the " in note


def _unplaced(targets: Iterable[TargetReport]) -> Iterable[TargetReport]:
    return (replace(target, place=0) for target in targets)


def _environment(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What all say; where machines differ, everything that one of them says."""
    names = dict.fromkeys(name for each in found for name in each)
    several = {name: dict.fromkeys(str(each.get(name, "")) for each in found) for name in names}
    return {
        name: found[0].get(name) if len(values) == 1 else ", ".join(filter(None, values))
        for name, values in several.items()
    }


def _check_alike(saved: Sequence[SavedReport]) -> None:
    """Refuse reports of several versions, or that count different findings as failures."""
    first, told = saved[0], _rules(saved[0].report)
    for other in saved[1:]:
        for name, value in _rules(other.report).items():
            if value != told[name]:
                raise UsageError(
                    f"{first.path} has {name} {told[name]}, {other.path} has {name} {value}: "
                    "they cannot be one report"
                )


def _rules(report: Report) -> dict[str, str]:
    """What all parts of one report must have in common."""
    versions = {name: str(report.environment.get(name)) for name in LIBRARIES}
    skips = report.accepted_skips
    return {
        "attncheck": report.attncheck,
        **versions,
        "--fail-on": ", ".join(report.fail_on) or "nothing",
        "accepted skips": "of any kind" if skips is None else ", ".join(skips),
    }


def _check_shards(saved: Sequence[SavedReport]) -> None:
    """Refuse shards of several runs, a shard that is given twice, and what is no shard."""
    seen: dict[int, Path] = {}
    first = saved[0].report.shard
    for each in saved:
        shard = each.report.shard
        if shard is None or first is None:
            alone = next(other for other in saved if other.report.shard is None)
            raise UsageError(f"{alone.path} is no shard, and other reports are: merge one kind")
        if (shard.count, shard.run, shard.jobs) != (first.count, first.run, first.jobs):
            raise UsageError(
                f"{each.path} is shard {shard} of another run than {saved[0].path}: "
                "give all shards the same targets, settings and probes"
            )
        if shard.index in seen:
            raise UsageError(f"shard {shard} is given twice: {seen[shard.index]} and {each.path}")
        seen[shard.index] = each.path


def _check_matrix(saved: Sequence[SavedReport]) -> None:
    """Refuse a target that two reports checked with the same settings and a probe in common."""
    seen: dict[tuple[str, str, str], Path] = {}
    for each in saved:
        for target in each.report.targets:
            probes = [finding.probe for finding in target.results] or [""]
            settings = json.dumps(dict(target.settings), sort_keys=True, default=str)
            keys = [(target.target, settings, probe) for probe in probes]
            again = next((seen[key] for key in keys if key in seen), each.path)
            if again != each.path:
                raise UsageError(f"{target.label} is in {again} and in {each.path}")
            seen.update(dict.fromkeys(keys, each.path))
