"""BLT cuts a row into patches by the entropy of its bytes and does not ask the mask: padding bytes
move the patches of the prompt.

The number is the largest logit difference on the prompt when the bytes under the left padding are
exchanged; without padding in the row (the control) there is nothing to exchange: one prompt is
asked twice.
"""

import torch
from transformers import BltConfig, BltForCausalLM

SIZE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
PADDING = 4


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    part = SIZE | {"vocab_size": 64, "max_position_embeddings": 64}
    coder = part | {"hidden_size_global": 32, "cross_attn_k": 2, "cross_attn_all_layers": True}
    config = BltConfig(
        vocab_size=64,
        max_position_embeddings=64,
        patch_size=4,
        cross_attn_k=2,
        encoder_hash_byte_group_size=[2, 3],
        encoder_hash_byte_group_vocab=64,
        encoder_hash_byte_group_nb_functions=1,
        patcher_config=part,
        encoder_config=coder,
        decoder_config=coder,
        global_config=part,
    )
    made = BltForCausalLM(config).eval()
    for parameter in made.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, parameter.shape[-1] ** -0.5)
    return made


def moved(padding: int) -> float:
    made, generator = model(), torch.Generator().manual_seed(1)
    prompt = torch.randint(5, 60, (1, 16), generator=generator)
    logits = []
    for filler in (6, 50):
        row = torch.cat([torch.full((1, padding), filler), prompt], 1)
        mask = torch.cat([torch.zeros(1, padding, dtype=torch.long), torch.ones_like(prompt)], 1)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        with torch.no_grad():
            out = made(row, attention_mask=mask, position_ids=positions, use_cache=False).logits
        logits.append(out[:, padding:])
    return (logits[0] - logits[1]).abs().max().item()


def main() -> dict[str, float]:
    return {"blt": moved(PADDING), "no padding": moved(0)}


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:12s} {number:.2g}")
