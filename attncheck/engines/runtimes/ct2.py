"""ctranslate2 in this process: `pip install ctranslate2`. It converts the folder first, in float32.

Axes: B batch, T new tokens, V vocabulary.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, final

import numpy
import torch
from torch import Tensor

from attncheck.core.errors import TargetError, first_line
from attncheck.engines.engine import EngineTraits, Ids
from attncheck.engines.in_process import InProcessEngine, tried_out

INSTALL = "pip install ctranslate2"
TOGETHER = 4


@final
class Ct2Model:
    """A generator of ctranslate2. It shows no cache of its own: every call is a whole forward."""

    def __init__(self, generator: Any) -> None:
        self.generator = generator

    def state(self) -> None:
        """Nothing: it cannot be asked to go on from a cache."""

    def logits(self, rows: Sequence[Ids], state: None) -> Tensor:
        """logits_BTV of whole rows."""
        found = self.generator.forward_batch([list(row) for row in rows])
        return torch.from_numpy(numpy.array(found)).float()


def open_runtime(where: str) -> InProcessEngine:
    """The model in a folder.

    Raises:
        TargetError: ctranslate2 is not installed, does not convert the folder, or does not run it.
    """
    try:
        library = import_module("ctranslate2")
    except ImportError as error:
        raise TargetError(f"ct2:{where}: ctranslate2 is not installed ({INSTALL})") from error
    with tempfile.TemporaryDirectory() as folder:
        converted = Path(folder) / "converted"
        try:
            converter = library.converters.TransformersConverter(where)
            converter.convert(str(converted), quantization="float32")
            generator = library.Generator(str(converted), device="cpu", compute_type="float32")
        except Exception as error:
            reason = first_line(error)
            raise TargetError(f"ct2:{where}: ctranslate2 does not convert it: {reason}") from error
    traits = EngineTraits(
        scores=True, together=TOGETHER, facts={"engine": f"ctranslate2 {library.__version__}"}
    )
    return tried_out(InProcessEngine(f"ct2:{where}", Ct2Model(generator), traits))
