"""attncheck finds attention bugs in Hugging Face models: the kind where every shape is right and
the output is wrong.

Importing it loads neither torch nor transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attncheck.core.version import __version__

if TYPE_CHECKING:
    from attncheck.api import check
    from attncheck.core.errors import ChecksFailed
    from attncheck.core.finding import Finding
    from attncheck.core.measurement import Measurement
    from attncheck.core.verdict import Verdict
    from attncheck.report.model import Report

__all__ = ["ChecksFailed", "Finding", "Measurement", "Report", "Verdict", "__version__", "check"]

HOMES = {
    "check": "attncheck.api",
    "ChecksFailed": "attncheck.core.errors",
    "Finding": "attncheck.core.finding",
    "Measurement": "attncheck.core.measurement",
    "Verdict": "attncheck.core.verdict",
    "Report": "attncheck.report.model",
}


def __getattr__(name: str) -> Any:
    import random
    from importlib import import_module

    if name not in HOMES:
        raise AttributeError(f"module `attncheck` has no attribute `{name}`")
    drawn = random.getstate()
    try:
        return getattr(import_module(HOMES[name]), name)
    finally:
        random.setstate(drawn)  # rich draws a number while it is imported
