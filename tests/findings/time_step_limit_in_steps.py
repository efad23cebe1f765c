"""Nemotron-H and Zamba2: time steps are clamped from below in the chunked scan, not in the single
step.

The scan gets `dt_limit=(time_step_min, inf)`, the update of one token gets none: a small time step
differs between prefill and decode. The number is the largest logit difference between one forward
and one token at a time; with the limit taken away from the scan they agree.
"""

import torch
from transformers import AutoConfig, AutoModelForCausalLM

SIZE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "pad_token_id": 0,
}
TYPES = {
    "nemotron_h": SIZE
    | {
        "layers_block_type": ["linear_attention", "full_attention"],
        "num_hidden_layers": 2,
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
    }
    | {"ssm_state_size": 8, "n_groups": 2, "chunk_size": 8, "head_dim": 8},
    "zamba2": SIZE
    | {
        "num_hidden_layers": 4,
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "num_mem_blocks": 1,
    }
    | {
        "n_mamba_heads": 4,
        "mamba_ngroups": 1,
        "mamba_d_state": 8,
        "num_key_value_heads": 4,
        "chunk_size": 8,
        "adapter_rank": 8,
    },
}


def apart(kind: str, fields: dict, limited: bool) -> float:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **fields)).eval()
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1 and "A_log" not in name:
            parameter.data.normal_(0, parameter.shape[-1] ** -0.5)
        if "dt_bias" in name:
            parameter.data.fill_(-8.0)  # time steps of about 3e-4, below the limit of 1e-3
    for module in model.modules():
        if hasattr(module, "time_step_limit") and not limited:
            module.time_step_limit = (0.0, float("inf"))
    row = torch.randint(3, 64, (1, 12), generator=torch.Generator().manual_seed(1))
    cache, logits = None, []
    with torch.no_grad():
        whole = model(row, use_cache=False).logits
        for token in row.split(1, 1):
            out = model(token, use_cache=True, cache=cache)
            cache, logits = out.cache, [*logits, out.logits]
    return (torch.cat(logits, 1) - whole).abs().max().item()


def main() -> dict[str, float]:
    numbers = {kind: apart(kind, fields, limited=True) for kind, fields in TYPES.items()}
    return numbers | {
        f"{kind} without the limit": apart(kind, fields, limited=False)
        for kind, fields in TYPES.items()
    }


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:30s} {number:.2g}")
