"""What a report says before any probe ran: where it runs, what was loaded, or why nothing was."""

from __future__ import annotations

import platform
from typing import Any

import torch
import transformers

from attncheck.core.errors import AttncheckError, Unsupported, first_line
from attncheck.core.visible import made_visible, one_line, shortened
from attncheck.model import reach
from attncheck.model.subject import Subject
from attncheck.report.model import TargetReport
from attncheck.run.deadline import TimeUp
from attncheck.suite.plan import Job

ALIKE = "the tokenizer gives hardly any different ids of the sample text: seeded ids instead"


def failed_to_load(job: Job, error: BaseException, seconds: float) -> TargetReport:
    """The report of a target that could not be loaded, with the reason in one line."""
    text = str(error) if isinstance(error, (AttncheckError, TimeUp)) else first_line(error)
    target, settings = shortened(job.target), made_visible(vars(job.settings))
    line = one_line(text) if isinstance(error, AttncheckError) else f"{target}: {one_line(text)}"
    return TargetReport(target=target, settings=settings, error=line, seconds=seconds)


def loaded_report(subject: Subject, load_seconds: float) -> TargetReport:
    """The report of a loaded target before any probe ran."""
    settings = {
        "attn": subject.attn,
        "dtype": subject.dtype_name,
        "device": str(subject.device),
        "seed": subject.settings.seed,
        "asked": {
            name: value
            for name, value in vars(subject.settings).items()
            if value not in (None, False)
        },
    }
    try:
        settings["length"] = subject.inputs.length
        notes = reach.in_words(subject)
    except Unsupported as reason:
        notes = (str(reason),)
    notes = (*subject.loaded.remarks, *notes, *_of_tokenizer(subject))
    report = TargetReport(
        target=subject.name,
        model=subject.facts.as_dict(),
        settings=settings,
        seconds=load_seconds,
        load_seconds=load_seconds,
        notes=notes,
    )
    return made_visible(report)


def _of_tokenizer(subject: Subject) -> tuple[str, ...]:
    """That a tokenizer is of no use for the sample text."""
    try:
        unused = subject.tokenizer is not None and not subject.inputs.from_text
    except Unsupported:
        return ()
    return (ALIKE,) if unused else ()


def environment() -> dict[str, Any]:
    """Versions and hardware of this run."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "platform": platform.platform(),
        "device": "cuda" if torch.cuda.is_available() else "cpu",
    }
