"""Loading a model in several processes at once, each with its part of it, by the library's own tensor parallel plan."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

from attncheck.errors import TargetError
from attncheck.settings import Settings
from attncheck.subject import ranks
from attncheck.subject.adapters import adapted_layers
from attncheck.subject.target import Target


def wanted(settings: Settings) -> bool:
    """Whether the model is to be sharded."""
    return settings.tp is not None and settings.tp > 1


@contextlib.contextmanager
def together(target: Target, settings: Settings) -> Iterator[None]:
    """Load in all processes.

    Raises:
        TargetError: a device map is asked for too.
        UsageError: this process was not started as one of so many.
    """
    if settings.device_map:
        raise TargetError(f"{target.text}: --tp and --device-map are two ways of spreading one model: choose one")
    ranks.join(settings.tp or 1)
    with ranks.inside(f"loading {target.text}"):
        yield


@contextlib.contextmanager
def saved(model: Any) -> Iterator[str]:
    """A model that was made in memory as a folder to load it from: sharding happens while weights are read.

    Raises:
        TargetError: a folder cannot hold what the model does.
    """
    if "forward" in vars(model) or adapted_layers(model) or not hasattr(model, "save_pretrained"):
        raise TargetError(f"{type(model).__name__}: a model that was changed in memory cannot be sharded while it is loaded")
    own = tempfile.mkdtemp(prefix="attncheck-sharded-")
    try:
        folder = ranks.agreed("a folder", own)
        model.save_pretrained(folder)  # rank 0 writes it
        ranks.gathered("written", None)
        yield folder
        ranks.gathered("read", None)
    finally:
        shutil.rmtree(own, ignore_errors=True)
