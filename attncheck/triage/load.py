"""The model of a report, loaded in the precision that decides, with the precision that the reporter
uses.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from attncheck.core.settings import Settings
from attncheck.model.precision import DTYPES, NAMES
from attncheck.model.subject import Subject
from attncheck.targets.load import load

USUAL = "float32"
SLOW = 30_000_000
"""From this many parameters on, float32 is asked first and float64 only where float32 leaves a
doubt.
"""


def opened(target: str, settings: Settings) -> tuple[Subject, str]:
    """The subject in the precision that decides, and the reporter's: what they asked for, else the
    checkpoint's own.

    Raises:
        TargetError: the target cannot be loaded.
    """
    subject = load(target, replace(settings, dtype="auto"))
    own = settings.dtype if settings.dtype != "auto" else _own(subject)
    if subject.facts.parameters > SLOW and subject.dtype_name == "float64" and own != "float64":
        subject.take(DTYPES[USUAL])
    return subject, own


def _own(subject: Subject) -> str:
    """The dtype that the config says the checkpoint is in."""
    said: Any = getattr(subject.config, "dtype", None) or getattr(
        subject.config, "torch_dtype", None
    )
    return NAMES.get(said, str(said).removeprefix("torch.") if isinstance(said, str) else USUAL)
