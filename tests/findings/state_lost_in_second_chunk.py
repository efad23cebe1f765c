"""A row fed in two pieces on a cache: the state-space scan of the second piece starts from zero.

`mamba_selective_scan` takes no initial state, so that every forward of more than one token forgets
what the cache holds. The number is the largest logit difference between one forward and 7 + 5
tokens; mamba2, the control, agrees.
"""

import torch
from transformers import AutoConfig, AutoModelForCausalLM

SIZE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ATTENTION = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48}
TYPES = {
    "mamba": SIZE | {"state_size": 4},
    "falcon_mamba": SIZE | {"state_size": 4},
    "jamba": SIZE
    | ATTENTION
    | {
        "mamba_d_state": 4,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "num_experts": 2,
        "use_mamba_kernels": False,
    },
    "zamba": SIZE
    | ATTENTION
    | {
        "num_hidden_layers": 4,
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "attention_hidden_size": 64,
    }
    | {
        "attention_head_dim": 16,
        "n_mamba_heads": 2,
        "mamba_d_state": 4,
        "num_key_value_heads": 4,
        "use_mamba_kernels": False,
    },
    "recurrent_gemma": SIZE
    | ATTENTION
    | {
        "block_types": ["recurrent", "attention"],
        "lru_width": 32,
        "head_dim": 8,
        "num_key_value_heads": 1,
    },
}
CONTROL = {
    "mamba2": SIZE
    | {"state_size": 4, "head_dim": 16, "num_heads": 4, "n_groups": 1, "chunk_size": 4}
}


def apart(kind: str, fields: dict) -> float:
    from transformers import DynamicCache

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **fields)).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, 0.3)
    row = torch.randint(3, 64, (1, 12), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        whole = model(row, use_cache=False).logits
        cache = DynamicCache(config=model.config)
        first = model(row[:, :7], use_cache=True, cache=cache)
        second = model(row[:, 7:], use_cache=True, cache=cache)
    return (torch.cat([first.logits, second.logits], 1) - whole).abs().max().item()


def main() -> dict[str, float]:
    return {kind: apart(kind, fields) for kind, fields in (TYPES | CONTROL).items()}


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:22s} {number:.2g}")
