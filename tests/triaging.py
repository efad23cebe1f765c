"""What tests of triage share: the triage of a target, ready to run."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from attncheck.attention.interface import EAGER, attention_table
from attncheck.core.settings import Settings
from attncheck.targets.load import load
from attncheck.triage.answer import Question
from attncheck.triage.run import Investigation


def investigation(target: str, reported: str = "float32", **question: object) -> Investigation:
    return Investigation(load(target, Settings()), Question(**question), reported)  # type: ignore[arg-type]


@contextlib.contextmanager
def kernels_restored() -> Iterator[None]:
    """Put kernels back that a faulty model changes for the rest of the process."""
    table = attention_table()
    kernels = dict(table)
    eager = {
        module: module.eager_attention_forward
        for module in list(sys.modules.values())
        if hasattr(module, EAGER)
    }
    yield
    table.update(kernels)
    for module, kernel in eager.items():
        setattr(module, EAGER, kernel)
