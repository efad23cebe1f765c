"""The options that only `attncheck run` has. Loads neither torch nor transformers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import final

from attncheck.cli.options import option, reports_in_lines, shown
from attncheck.core.errors import UsageError
from attncheck.suite.plan import Selection

_select = partial(option, panel="Selection")
_gate = partial(option, panel="Exit code")
_sweep = partial(option, panel="Sweeps")
Texts = list[str] | None


class Format(str, Enum):
    """What goes to stdout."""

    table = "table"
    json = "json"
    jsonl = "jsonl"
    quiet = "quiet"


class Executor(str, Enum):
    """Where the targets of a sweep run."""

    processes = "processes"
    ray = "ray"


@final
@dataclass(frozen=True, kw_only=True)
class SelectionOptions:
    """The models and probes to run."""

    suite: Path | None = _select(None, "Run the models and probes of this YAML suite.", "FILE")
    listed: Path | None = _select(
        None,
        "Run the targets in this file, one a line with its settings: `org/name layers=4`.",
        "FILE",
        "--targets",
        rare=True,
    )
    tag: Texts = _select(
        None, "Run only suite entries with this tag; !TAG excludes them.", "TAG", rare=True
    )
    probe: Texts = _select(
        None, "Run these probes (name, glob or FILE.py:Class; repeatable).", "NAME"
    )
    skip: Texts = _select(None, "Skip these probes (globs, repeatable).", "NAME")
    quick: bool = _select(False, "Ask the few cases that catch nearly all faults.")
    budget: str | None = _select(
        None, "Ask what fits in this time, most telling first: 30s, 2m.", "TIME"
    )

    def selection(self) -> Selection:
        """The part of a suite, or of the installed probes, that runs."""
        tags, probes, skip = (tuple(each or ()) for each in (self.tag, self.probe, self.skip))
        return Selection(tags=tags, probes=probes, skip=skip)


@final
@dataclass(frozen=True, kw_only=True)
class GateOptions:
    """Which findings make the command fail."""

    fail_on: Texts = _gate(
        None,
        "Fail on it too: warn, noise, vacuous, trap, skip[=KIND].",
        "VERDICT",
    )
    strict: bool = _gate(False, "Count vacuous, warn and noise as failure.")
    golden: Path | None = _gate(
        None, "Hold the model against this recording, too (`attncheck record`).", "FILE", rare=True
    )
    fail_fast: bool = _gate(False, "Stop at the first failure.", rare=True)
    baseline: Path | None = _gate(
        None, "Accept the findings in this file; only new ones fail.", "FILE"
    )
    write_baseline: Path | None = _gate(
        None, "Write the findings of this run to a baseline.", "FILE", rare=True
    )


@final
@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """Many targets, each in a process of its own."""

    shard: str | None = _sweep(
        None,
        "Run part I of N of the targets; `attncheck merge` joins the reports.",
        "I/N",
        rare=True,
    )
    jobs: int = _select(
        1, "Run this many targets at once.", "N", "--jobs", "-j", min=1, show_default=False
    )
    executor: Executor = _sweep(
        Executor.processes,
        "Where targets run: in processes here, or on a Ray cluster (RAY_ADDRESS).",
        "processes|ray",
        rare=True,
    )
    sweep_dir: Path | None = _sweep(
        None, "Write one report per target here; a rerun resumes.", "FOLDER", rare=True
    )
    timeout: float | None = _sweep(
        None, "Seconds that one target may take; 180 in a sweep.", "SECONDS", rare=True
    )
    memory: float | None = _sweep(
        None, "GiB of memory that one target of a sweep may take; 6 by default.", "GIB", rare=True
    )

    @property
    def separate(self) -> bool:
        """Whether these options ask for a process for each target."""
        return self.jobs > 1 or self.sweep_dir is not None or self.executor is Executor.ray

    def check(self, sweep: bool) -> None:
        """Refuse limits that limit nothing.

        Raises:
            UsageError: no number above 0, or a limit on memory where one process checks all.
        """
        for name, value in (("--timeout", self.timeout), ("--memory", self.memory)):
            if value is not None and not 0 < value < math.inf:
                raise UsageError(f"{name} {value:g}: expected a number above 0")
        if self.memory is not None and not sweep:
            raise UsageError(
                "--memory limits the processes of a sweep: give --jobs or --sweep-dir too"
            )


@dataclass(frozen=True, kw_only=True)
class ShownOptions:
    """What is shown and written of a report."""

    output: Format = shown(
        Format.table, "Print table, json, jsonl or quiet.", "FORMAT", "--format", show_default=False
    )
    report: Texts = shown(
        None,
        "Write json, junit, sarif, markdown or html.",
        "FORMAT=PATH",
        callback=reports_in_lines,
    )
    verbose: bool = shown(False, "Show every case.", None, "-v", "--verbose")
    traps: bool = shown(False, "Show traps of the library whole.", rare=True)
    quiet: bool = shown(False, "Print the summary line only.", None, "-q", "--quiet")

    @property
    def format(self) -> str:
        """What goes to stdout; `--quiet` shortens the table and leaves JSON whole."""
        quiet = self.quiet and self.output is Format.table
        return "quiet" if quiet else self.output.value


@final
@dataclass(frozen=True, kw_only=True)
class OutputOptions(ShownOptions):
    """What is shown and written of a run."""

    repro: Path | None = shown(
        None, "Write a stand-alone script for each failure.", "FOLDER", rare=True
    )

    @property
    def scripts(self) -> Path | None:
        """The folder for scripts, wherever a model changes to."""
        return self.repro.absolute() if self.repro is not None else None
