"""T5Gemma's decoder: packed documents read each other.

The library recognises documents by positions that restart, without a mask and a cache, and isolates
them; T5Gemma's decoder hands it no positions. The number is the largest change of the second
document's logits when the first one changes.
"""

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    T5GemmaConfig,
    T5GemmaForConditionalGeneration,
)

PART = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "sliding_window": 64,
    "max_position_embeddings": 64,
}


def moved(kind: str) -> float:
    torch.manual_seed(0)
    if kind == "llama":
        size = {name: value for name, value in PART.items() if name != "sliding_window"}
        model = LlamaForCausalLM(LlamaConfig(**size)).eval()
    else:
        config = T5GemmaConfig(encoder=PART, decoder=PART, vocab_size=64)
        model = T5GemmaForConditionalGeneration(config).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, parameter.shape[-1] ** -0.5)
    row = torch.randint(5, 60, (1, 12), generator=torch.Generator().manual_seed(1))
    changed = row.clone()
    changed[:, :6] = row[:, :6].flip(1)
    positions = torch.tensor([[*range(6), *range(6)]])
    with torch.no_grad():
        if kind == "llama":
            before, after = (
                model(each, position_ids=positions, use_cache=False).logits
                for each in (row, changed)
            )
        else:
            before, after = (
                model(
                    input_ids=row,
                    decoder_input_ids=each,
                    decoder_position_ids=positions,
                    use_cache=False,
                ).logits
                for each in (row, changed)
            )
    return (after[:, 6:] - before[:, 6:]).abs().max().item()


def main() -> dict[str, float]:
    return {"t5gemma": moved("t5gemma"), "llama": moved("llama")}


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:28s} {number:.2g}")
