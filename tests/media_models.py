"""Small models that read pictures, sound or codebooks, each loaded once."""

from __future__ import annotations

from functools import lru_cache

import torch
import transformers
from probing import loaded

from attncheck.model.subject import Subject
from attncheck.targets.amplify import amplify
from attncheck.targets.shrink.rules import Wanted
from attncheck.targets.shrink.shrink import shrink


@lru_cache(maxsize=12)
def multimodal(name: str) -> Subject:
    return loaded(f"config:multimodal/{name}")


@lru_cache(maxsize=1)
def codebooks() -> Subject:
    """Tokens with codes of three codebooks beside each, without the window that the cache alone
    has.
    """
    config = shrink(transformers.KyutaiSpeechToTextConfig(), Wanted())
    config.sliding_window = config.max_position_embeddings
    torch.manual_seed(0)
    model = transformers.KyutaiSpeechToTextForConditionalGeneration(config)
    amplify(model, 0)
    return Subject.of(model, "codebooks", dtype="float64")
