"""The options that only `attncheck run` has. Loads neither torch nor transformers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, final

from attncheck.cli.options import Repro, option, output, reports_in_lines
from attncheck.suite.plan import Selection

selection = partial(option, panel="Selection")
gate = partial(option, panel="Exit code")
many = partial(option, panel="Sweeps")


class Format(str, Enum):
    """What goes to stdout."""

    table = "table"
    json = "json"
    jsonl = "jsonl"
    quiet = "quiet"


@final
@dataclass(frozen=True, kw_only=True)
class SelectionOptions:
    """The models and probes to run."""

    suite: Annotated[
        Path | None, selection("Run the models and probes of this YAML suite.", metavar="FILE")
    ] = None
    tag: Annotated[
        list[str] | None,
        selection("Run only suite entries with this tag; !TAG excludes them.", metavar="TAG"),
    ] = None
    probe: Annotated[
        list[str] | None,
        selection("Run these probes (name, glob or FILE.py:Class; repeatable).", metavar="NAME"),
    ] = None
    skip: Annotated[
        list[str] | None, selection("Skip these probes (globs, repeatable).", metavar="NAME")
    ] = None
    quick: Annotated[bool, selection("Skip expensive probes.")] = False

    def selection(self) -> Selection:
        """The part of a suite, or of the installed probes, that runs."""
        return Selection(
            tags=tuple(self.tag or ()),
            probes=tuple(self.probe or ()),
            skip=tuple(self.skip or ()),
        )


@final
@dataclass(frozen=True, kw_only=True)
class GateOptions:
    """Which findings make the command fail."""

    fail_on: Annotated[
        list[str] | None,
        gate(
            "Count this verdict as failure: warn, noise, vacuous or skip (repeatable).",
            metavar="VERDICT",
        ),
    ] = None
    strict: Annotated[bool, gate("Count vacuous, warn and noise as failure.")] = False
    fail_fast: Annotated[bool, gate("Stop at the first failure.")] = False
    baseline: Annotated[
        Path | None, gate("Accept the findings in this file; only new ones fail.", metavar="FILE")
    ] = None
    write_baseline: Annotated[
        Path | None, gate("Write the findings of this run to a baseline.", metavar="FILE")
    ] = None


@final
@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """Many targets, each in a process of its own."""

    jobs: Annotated[
        int, many("Run this many targets at once.", "--jobs", "-j", min=1, metavar="N")
    ] = 1
    sweep_dir: Annotated[
        Path | None,
        many("Write one report per target here; a rerun resumes.", metavar="FOLDER"),
    ] = None
    timeout: Annotated[float, many("Seconds that one target may take.", metavar="SECONDS")] = 180.0
    memory: Annotated[float, many("GiB of memory that one target may take.", metavar="GIB")] = 6.0


@final
@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """What is shown and written."""

    output: Annotated[
        Format, output("Print results in this format.", "--format", show_default=True)
    ] = Format.table
    report: Annotated[
        list[str] | None,
        output(
            "Write a report: json, junit, sarif, markdown or html (repeatable).",
            metavar="FORMAT=PATH",
            callback=reports_in_lines,
        ),
    ] = None
    repro: Repro = None
    verbose: Annotated[bool, output("Show every case.", "-v", "--verbose")] = False
    quiet: Annotated[bool, output("Print the summary line only.", "-q", "--quiet")] = False

    @property
    def format(self) -> str:
        """What goes to stdout; `--quiet` shortens the table and leaves JSON whole."""
        quiet = self.quiet and self.output is Format.table
        return "quiet" if quiet else self.output.value
