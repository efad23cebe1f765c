"""RecurrentGemma keeps its convolution state on the module: a prompt of one token continues the
conversation before it.

A forward of more than one token overwrites the state and a forward without a cache clears it; the
first token of a prompt of one token, on a cache as generate() hands it in, is convolved with the
last tokens of whatever ran before. The number is the largest logit difference of the same one-token
prompt before and after another conversation; with two tokens there is none.
"""

import torch
from transformers import DynamicCache, RecurrentGemmaConfig, RecurrentGemmaForCausalLM

SIZE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "intermediate_size": 48,
}
SIZE |= {
    "block_types": ["recurrent", "attention"],
    "lru_width": 32,
    "head_dim": 8,
    "pad_token_id": 0,
}


def asked(model: torch.nn.Module, row: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(row, use_cache=True, cache=DynamicCache(config=model.config)).logits


def apart(length: int) -> float:
    torch.manual_seed(0)
    model = RecurrentGemmaForCausalLM(RecurrentGemmaConfig(**SIZE)).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, 0.3)
    row, other = torch.randint(3, 64, (2, 1, 9), generator=torch.Generator().manual_seed(1))
    before = asked(model, row[:, :length])
    asked(model, other)
    return (asked(model, row[:, :length]) - before).abs().max().item()


def main() -> dict[str, float]:
    return {"one token": apart(1), "two tokens": apart(2)}


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:22s} {number:.2g}")
