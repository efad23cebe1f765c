"""A 2D attention mask that is accepted and changes nothing: padding is read as text.

YOSO multiplies its scores by `1 + mask / 10000`, for a mask of 0 and 1; RWKV and CPM-Ant take the
argument and leave it. The number is the largest change of the visible tokens' logits when the tokens
that the mask hides are replaced.
"""

import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    RwkvConfig,
    RwkvForCausalLM,
    YosoConfig,
    YosoForMaskedLM,
)

SIZE = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "intermediate_size": 48, "max_position_embeddings": 64}


def moved(model: torch.nn.Module) -> float:
    torch.manual_seed(0)
    model.eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, parameter.shape[-1] ** -0.5)
    row = torch.randint(5, 64, (1, 12), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(row)
    mask[:, :4] = 0
    changed = row.clone()
    changed[:, :4] = row[:, :4].flip(1) - 1
    with torch.no_grad():
        before, after = (model(each, attention_mask=mask).logits[:, 4:] for each in (row, changed))
    return (after - before).abs().max().item()


def main() -> dict[str, float]:
    return {
        "yoso": moved(YosoForMaskedLM(YosoConfig(**SIZE, **HEADS, use_expectation=True))),
        "rwkv": moved(
            RwkvForCausalLM(RwkvConfig(**SIZE, attention_hidden_size=32, context_length=64))
        ),
        "bert": moved(BertForMaskedLM(BertConfig(**SIZE, **HEADS))),
    }


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:28s} {number:.2g}")
