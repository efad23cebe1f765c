"""mlx-lm in this process: `pip install mlx-lm "mlx[cpu]"`.

Axes: B batch, T new tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from attncheck.core.errors import TargetError, first_line
from attncheck.engines.engine import EngineTraits, Ids
from attncheck.engines.in_process import InProcessEngine, tried_out

INSTALL = 'pip install mlx-lm "mlx[cpu]"'


@final
class MlxModel:
    """A model of mlx-lm."""

    def __init__(self, model: Any) -> None:
        self.core = import_module("mlx.core")
        self.caches = import_module("mlx_lm.models.cache")
        self.model = model

    def state(self) -> Any:
        """One cache for each layer."""
        return self.caches.make_prompt_cache(self.model)

    def logits(self, rows: Sequence[Ids], state: Any) -> Tensor:
        """logits_BTV of new tokens."""
        core = self.core
        found_BTV = self.model(core.array([list(row) for row in rows]), cache=state)
        found_BTV = found_BTV.astype(core.float32)
        core.eval(found_BTV)
        return torch.tensor(found_BTV.tolist(), dtype=torch.float32)


def open_runtime(where: str) -> InProcessEngine:
    """The model in a folder.

    Raises:
        TargetError: mlx-lm is not installed, or does not load the folder.
    """
    try:
        loading = import_module("mlx_lm.utils")
    except ImportError as error:
        raise TargetError(f"mlx:{where}: mlx-lm is not installed ({INSTALL})") from error
    try:
        model, config = loading.load_model(Path(where))[:2]
    except Exception as error:
        raise TargetError(f"mlx:{where}: mlx-lm does not load it: {first_line(error)}") from error
    traits = EngineTraits(
        scores=True,
        cuts=True,
        together=4,
        vocab=config.get("vocab_size"),
        context=config.get("max_position_embeddings"),
        facts={"engine": f"mlx-lm {_version('mlx_lm')}"},
    )
    return tried_out(InProcessEngine(f"mlx:{where}", MlxModel(model), traits))


def _version(package: str) -> str:
    return str(getattr(import_module(package), "__version__", "of unknown version"))
