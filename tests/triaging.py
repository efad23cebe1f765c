"""What tests of triage share: the triage of a target, ready to run."""

from __future__ import annotations

from attncheck.core.settings import Settings
from attncheck.targets.load import load
from attncheck.triage.answer import Question
from attncheck.triage.run import Investigation


def investigation(target: str, reported: str = "float32", **question: object) -> Investigation:
    return Investigation(load(target, Settings()), Question(**question), reported)  # type: ignore[arg-type]
