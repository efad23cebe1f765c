"""MiniMax: `reorder_cache` and `reset` know the keys and values alone, and leave the state of the
linear layers as it was.

The numbers are the largest logit differences after two rows of a filled cache changed places,
against the rows fed in that order, and of a row on a cache that was reset, against the row alone;
with attention layers alone they agree.
"""

import torch
from transformers import MiniMaxConfig, MiniMaxForCausalLM

SIZE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
SIZE |= {
    "intermediate_size": 48,
    "head_dim": 8,
    "num_local_experts": 2,
    "num_experts_per_tok": 1,
    "max_position_embeddings": 64,
}


def apart(kinds: list[str]) -> tuple[float, float]:
    torch.manual_seed(0)
    model = MiniMaxForCausalLM(MiniMaxConfig(**SIZE, layer_types=kinds)).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, parameter.shape[-1] ** -0.5)
    rows = torch.randint(5, 64, (2, 10), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        cache = model(rows[:, :8], use_cache=True).cache
        cache.reorder_cache(torch.tensor([1, 0]))
        turned = model(rows.flip(0)[:, 8:9], cache=cache, use_cache=True).logits
        whole = model(rows.flip(0)[:, :9], use_cache=False).logits[:, 8:]
        cache.reset()
        emptied = model(rows[:, :4], cache=cache, use_cache=True).logits
        alone = model(rows[:, :4], use_cache=False).logits
    return (turned - whole).abs().max().item(), (emptied - alone).abs().max().item()


def main() -> dict[str, float]:
    linear = apart(["linear_attention", "full_attention"])
    attention = apart(["full_attention"] * 2)
    return {
        "linear layers": linear[0],
        "attention alone": attention[0],
        "linear layers, reset": linear[1],
        "attention alone, reset": attention[1],
    }


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:22s} {number:.2g}")
