"""Falcon with ALiBi: asking for the attention weights adds the bias twice, and a static cache raises.

Under sdpa the bias is part of the mask; the branch for `output_attentions=True` adds it once more.
The number is the largest logit difference between the same forward with and without
`output_attentions=True`; eager attention is right. The bias is as long as the row, a static cache
as long as its buffer.
"""

import torch
from transformers import FalconConfig, FalconForCausalLM, StaticCache

SIZE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "alibi": True,
}
ROW = torch.randint(5, 64, (1, 12), generator=torch.Generator().manual_seed(1))


def drawn(attn: str) -> FalconForCausalLM:
    torch.manual_seed(0)
    model = FalconForCausalLM._from_config(FalconConfig(**SIZE), attn_implementation=attn).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, parameter.shape[-1] ** -0.5)
    return model


def apart(attn: str) -> float:
    model = drawn(attn)
    with torch.no_grad():
        plain = model(ROW, use_cache=False).logits
        asked = model(ROW, use_cache=False, output_attentions=True).logits
    return (plain - asked).abs().max().item()


def raises() -> float:
    model = drawn("sdpa")
    try:
        with torch.no_grad():
            model(ROW, cache=StaticCache(config=model.config, max_cache_len=20), use_cache=True)
    except RuntimeError:
        return 1.0
    return 0.0


def main() -> dict[str, float]:
    return {"sdpa": apart("sdpa"), "static cache raises": raises(), "eager": apart("eager")}


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:22s} {number:.2g}")
