"""Moshi: the cache keeps `sliding_window` tokens, but the mask of a forward knows no window.

`create_causal_mask` is used where the cache is a sliding one: past the window, a forward over the
whole row reads everything and decoding reads the last `sliding_window` tokens. The number is the
largest logit difference between the two at 20 tokens.
"""

import torch
from transformers import MoshiConfig, MoshiForCausalLM

SIZE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "ffn_dim": 48,
}


def apart(window: int) -> float:
    torch.manual_seed(0)
    model = MoshiForCausalLM(
        MoshiConfig(**SIZE, head_dim=8, sliding_window=window, max_position_embeddings=64)
    ).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, parameter.shape[-1] ** -0.5)
    row = torch.randint(3, 64, (1, 20), generator=torch.Generator().manual_seed(1))
    cache, logits = None, []
    with torch.no_grad():
        whole = model(row, use_cache=False).logits
        for token in row.split(1, 1):
            out = model(token, use_cache=True, cache=cache)
            cache, logits = out.cache, [*logits, out.logits]
    return (torch.cat(logits, 1) - whole).abs().max().item()


def main() -> dict[str, float]:
    return {"window 8": apart(8), "window 64": apart(64)}


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:22s} {number:.2g}")
