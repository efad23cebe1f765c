"""The cache of a model that makes none itself: of the class that its own module defines, or the
library's dynamic one.

Such models leave it to generate(); a plain forward with `use_cache=True` then returns no cache at
all.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

import torch
from torch import nn

from attncheck.model.cache_kinds import new_cache
from attncheck.model.compat import text_config
from attncheck.model.placement import input_device


def own_cache(model: nn.Module, rows: int, dtype: torch.dtype) -> Any:
    """An empty cache for `rows` rows, as generate() would hand it in.

    Raises:
        Unsupported: the library can make none for this model.
    """
    device = input_device(model)
    config = text_config(getattr(model, "config", None))
    offered = {
        "config": config,
        "batch_size": rows,
        "max_batch_size": rows,
        "dtype": dtype,
        "device": device,
    }
    for kind in _classes(type(model).__module__):
        wanted = inspect.signature(kind.__init__).parameters  # type: ignore[misc]
        if "config" in wanted and ("batch_size" in wanted or "max_batch_size" in wanted):
            return kind(**{name: value for name, value in offered.items() if name in wanted})
    return new_cache("dynamic", model, rows=rows, length=0, dtype=dtype)


def _classes(home: str) -> list[type]:
    found = vars(sys.modules[home]).values() if home in sys.modules else ()
    return [
        each
        for each in found
        if isinstance(each, type) and each.__name__.endswith("Cache") and each.__module__ == home
    ]
