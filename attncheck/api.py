"""The checks as a function, for models in memory and for people's own tests.

report = attncheck.check(model, probes=["decode-paths"])
report.raise_for_failures()
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from attncheck.core import registry
from attncheck.core.errors import UsageError, unknown
from attncheck.core.settings import Settings
from attncheck.core.skips import accepted_skips
from attncheck.core.verdict import failing
from attncheck.model import compat
from attncheck.model.kept_state import model_untouched, process_untouched
from attncheck.model.subject import Subject
from attncheck.report.model import Report
from attncheck.run.session import Session, load_job
from attncheck.suite.plan import Job
from attncheck.targets.adapters import unwrapped
from attncheck.targets.load import in_memory, settle_dtype

COMMAND = "attncheck.check(…)"


def check(
    model: nn.Module | str,
    tokenizer: Any = None,
    *,
    probes: Iterable[str | Mapping[str, Mapping[str, Any]]] = (),
    skip: Iterable[str] = (),
    fail_on: Iterable[str] = (),
    name: str = "",
    **settings: Any,
) -> Report:
    """Run probes on a model in memory, or on a target as the command line takes it, and return the
    report.

    `probes` are names, globs, `FILE.py:Class`, or `{name: {option: value}}`; all installed ones
    when left out. `settings` are those of `attncheck.core.settings.Settings`: `dtype`, `attn`,
    `seed`, `length`, `prompt`, … The model comes back as it was: weights, buffers, dtypes and
    training mode, gradients, hooks and configs; so do random state, default dtype, log level and
    progress bars of the process. Checks in several threads run one after the other. Nothing is
    raised for what is found: `Report.raise_for_failures` does.

    Raises:
        UsageError: an unknown probe, option, verdict or setting.
    """
    with process_untouched(), contextlib.ExitStack() as stack:
        job = Job(
            target=model if isinstance(model, str) else name or type(model).__name__,
            settings=_settings(settings),
            probes=tuple(_calls(probes, tuple(skip))),
            home=Path.cwd(),
        )
        for probe, options in job.probes:
            registry.load(probe, options, job.home)
        counted = [fail_on] if isinstance(fail_on, str) else list(fail_on)
        session = Session(
            command=COMMAND,
            listener=lambda event, report: None,
            fail_on=failing(counted),
            accepted_skips=accepted_skips(counted),
            loader=load_job
            if isinstance(model, str)
            else lambda job: _in_memory(job, model, tokenizer, stack),
        )
        session.run([job])
        return session.finished(session.report.exit_code)


def _settings(given: Mapping[str, Any]) -> Settings:
    valid = vars(Settings())
    for name in given:
        if name not in valid:
            raise UsageError(unknown("setting", name, valid))
    return Settings(**given)


def _calls(
    probes: Iterable[str | Mapping[str, Mapping[str, Any]]], skip: tuple[str, ...]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    wanted = [probes] if isinstance(probes, (str, Mapping)) else list(probes)
    options: dict[str, Mapping[str, Any]] = {}
    for each in wanted:
        options.update(each if isinstance(each, Mapping) else {})
    names = [name for each in wanted for name in ([each] if isinstance(each, str) else each)]
    for name in registry.select(names, skip):
        yield name, options.get(name, {})


def _in_memory(job: Job, model: nn.Module, tokenizer: Any, stack: contextlib.ExitStack) -> Subject:
    compat.quiet()
    model, remarks = unwrapped(model)
    stack.enter_context(model_untouched(model))
    loaded = in_memory(model, job.target, job.settings, tokenizer)
    loaded.remarks = remarks
    stack.enter_context(loaded.using(job.settings.attn))
    return settle_dtype(loaded, job.settings.dtype)
