"""A sliding cache is a view: after a long prompt, the whole prompt stays in memory.

`keys[:, :, -window:]` is sliced and not copied. The number is what the storage behind a layer's
keys holds beyond the keys themselves, in multiples of them, for a prompt of 400 tokens and a window
of 8; a layer without a window gives 0.
"""

import torch
from transformers import Gemma2Config, Gemma2ForCausalLM

SIZE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def main() -> dict[str, float]:
    config = Gemma2Config(
        **SIZE, intermediate_size=48, head_dim=8, sliding_window=8, max_position_embeddings=512
    )
    row = torch.randint(5, 64, (1, 400), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        cache = Gemma2ForCausalLM(config).eval()(row, use_cache=True).cache
    keys = [layer.keys for layer in cache.layers]
    ratios = [each.untyped_storage().nbytes() / each.nbytes - 1 for each in keys]
    return dict(zip(config.layer_types, ratios, strict=True))


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:22s} {number:.2g} times more than needed")
