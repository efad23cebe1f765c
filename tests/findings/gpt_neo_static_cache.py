"""GPT-Neo on a static cache: the buffer's length is taken for the number of tokens.

The causal buffer of a layer is cut at `key_length`, the length of the whole static buffer, so that
queries sit at its end and read empty slots. The number is the largest logit difference between one
forward without a cache and 6 + 1 + 1 tokens on a static cache of 32 slots; on a dynamic cache they
agree.
"""

import torch
from transformers import DynamicCache, GPTNeoConfig, GPTNeoForCausalLM, StaticCache

SIZE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_layers": 2,
    "num_heads": 4,
    "window_size": 4,
    "max_position_embeddings": 64,
}


def apart(static: bool) -> float:
    torch.manual_seed(0)
    config = GPTNeoConfig(**SIZE, attention_types=[[["global", "local"], 1]])
    model = GPTNeoForCausalLM(config).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, parameter.shape[-1] ** -0.5)
    row = torch.randint(5, 64, (1, 8), generator=torch.Generator().manual_seed(1))
    cache = StaticCache(config=config, max_cache_len=32) if static else DynamicCache(config=config)
    with torch.no_grad():
        whole = model(row, use_cache=False).logits
        logits = [
            model(piece, cache=cache, use_cache=True).logits for piece in row.split([6, 1, 1], 1)
        ]
    return (torch.cat(logits, 1) - whole).abs().max().item()


def main() -> dict[str, float]:
    return {"static cache": apart(static=True), "dynamic cache": apart(static=False)}


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:22s} {number:.2g}")
