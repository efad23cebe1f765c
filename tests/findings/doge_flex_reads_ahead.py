"""Doge reads ahead under flex_attention.

Its layers add their dynamic mask to a mask tensor and hand both to the kernel of the name that the
config has; the flex kernel that Doge registers for this, `doge_flex_attention`, has another name and
is never called. The number is how far the logits of 20 tokens move when the token after them is
replaced; under sdpa they stay.
"""

import torch
from transformers import DogeConfig, DogeForCausalLM

SIZE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "keep_window_size": 64,
}


def moved(attn: str) -> float:
    torch.manual_seed(0)
    model = DogeForCausalLM(DogeConfig(**SIZE)).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, 0.3)
    model.set_attn_implementation(attn)
    row = torch.arange(11, 35)[None]
    other = row.clone()
    other[0, 20] = 50
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        pair = [model(each, use_cache=False).logits[:, :20] for each in (row, other)]
    return (pair[0] - pair[1]).abs().max().item()


def main() -> dict[str, float]:
    return {"flex_attention": moved("flex_attention"), "sdpa": moved("sdpa")}


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:22s} {number:.2g}")
