"""Dynamic NTK and LongRoPE: past the trained length the angles change, and keys in the cache keep
the old ones.

By construction of both schemes, a forward over the whole row and decoding on a cache disagree once
the trained length (16 here) is crossed. The number is the largest logit difference over 24 tokens;
within the trained length they agree.
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Phi3Config, Phi3ForCausalLM

SIZE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
}
SIZE |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 16,
    "partial_rotary_factor": 1.0,
}
LONG |= {"short_factor": [1.0] * 4, "long_factor": [2.0, 4.0, 8.0, 16.0]}


def apart(model: torch.nn.Module, length: int) -> float:
    for parameter in model.eval().parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, parameter.shape[-1] ** -0.5)
    row = torch.randint(3, 64, (1, length), generator=torch.Generator().manual_seed(1))
    cache, logits = None, []
    with torch.no_grad():
        for token in row.split(1, 1):
            out = model(token, use_cache=True, cache=cache)
            cache, logits = out.cache, [*logits, out.logits]
        whole = model(row, use_cache=False).logits
    return (torch.cat(logits, 1) - whole).abs().max().item()


def main() -> dict[str, float]:
    torch.manual_seed(0)
    dynamic = LlamaConfig(**SIZE, max_position_embeddings=16, rope_parameters=DYNAMIC)
    long = Phi3Config(
        **SIZE,
        max_position_embeddings=64,
        original_max_position_embeddings=16,
        rope_parameters=LONG,
    )
    return {
        "llama, dynamic NTK": apart(LlamaForCausalLM(dynamic), 24),
        "llama within the trained length": apart(LlamaForCausalLM(dynamic), 16),
        "phi3, longrope": apart(Phi3ForCausalLM(long), 24),
        "phi3 within the trained length": apart(Phi3ForCausalLM(long), 16),
    }


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:34s} {number:.2g}")
