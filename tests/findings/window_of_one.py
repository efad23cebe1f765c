"""A sliding window of one token: the cache of such layers keeps everything.

A sliding layer keeps the last `window - 1` tokens as `keys[:, :, -window + 1 :]`, which is all of
them for a window of one. The number is the largest logit difference between one forward and the same
tokens in two chunks on a cache.
"""

import torch
from transformers import MistralConfig, MistralForCausalLM

SIZE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
}


def apart(window: int) -> float:
    torch.manual_seed(0)
    model = MistralForCausalLM(MistralConfig(**SIZE, sliding_window=window)).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, parameter.shape[-1] ** -0.5)
    row = torch.randint(5, 64, (1, 12), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        whole = model(row, use_cache=False).logits
        cache, logits = None, []
        for chunk in row.split([6, 1, 1, 1, 1, 1, 1], 1):
            output = model(chunk, cache=cache, use_cache=True)
            cache = output.cache
            logits.append(output.logits)
    return (torch.cat(logits, 1) - whole).abs().max().item()


def kept(window: int) -> int:
    torch.manual_seed(0)
    model = MistralForCausalLM(MistralConfig(**SIZE, sliding_window=window)).eval()
    row = torch.randint(5, 64, (1, 12), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return model(row, use_cache=True).cache.layers[0].keys.shape[-2]


def main() -> dict[str, float]:
    return {
        "window 1": apart(1),
        "window 2": apart(2),
        "kept beyond the window of 1": float(kept(1)),
        "kept beyond the window of 2": float(max(0, kept(2) - 1)),
    }


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:28s} {number:.2g}")
