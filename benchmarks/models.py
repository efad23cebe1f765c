"""The models that are measured: any target, or a random model of a given shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from attncheck.model.subject import Subject


class Shape(NamedTuple):
    """A random decoder: number of layers, length of the input, size of the vocabulary."""

    layers: int = 4
    length: int = 24
    vocabulary: int = 512
    width: int = 64

    def __str__(self) -> str:
        return f"{self.layers} layers, {self.length} tokens, vocabulary {self.vocabulary}"


def subject_of(source: str | Shape, dtype: str, length: int | None = None) -> Subject:
    """The subject behind a target or of a shape."""
    from attncheck.core.settings import Settings
    from attncheck.model import compat
    from attncheck.targets.load import in_memory, load, settle_dtype

    if isinstance(source, str):
        return load(source, Settings(dtype=dtype, length=length))
    compat.quiet()
    settings = Settings(dtype=dtype, length=source.length)
    return settle_dtype(in_memory(drawn(source), str(source), settings), dtype)


def drawn(shape: Shape) -> Any:
    """A random model of this shape with grouped queries, its weights amplified as those of
    `config:` targets are.
    """
    import torch
    import transformers

    from attncheck.targets.amplify import amplify

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=2 * shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4 * shape.length,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = transformers.AutoModelForCausalLM.from_config(config)
    amplify(model, 0)
    return model
