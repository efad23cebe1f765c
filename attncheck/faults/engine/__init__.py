"""What faults are built from: injection into a model, the trusted path, hypotheses."""

from __future__ import annotations

from attncheck.faults.engine.expected import Allowed, View
from attncheck.faults.engine.fault import Fault, Injected
from attncheck.faults.engine.hypothesis import Hypothesis, WrongForward, words
from attncheck.faults.engine.trusted import Change, Trusted

__all__ = [
    "Allowed",
    "Change",
    "Fault",
    "Hypothesis",
    "Injected",
    "Trusted",
    "View",
    "WrongForward",
    "words",
]
