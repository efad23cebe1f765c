"""M2M-100 and NLLB-MoE: positions leave padding out in a prefill and count it in a step.

Position ids come from the token ids, where padding is skipped; a step adds the length of the cache,
which holds the padding. The number is the largest logit difference of the last token between one
forward over a left-padded decoder row and the same row with the last token on the cache.
"""

import torch
from transformers import (
    M2M100Config,
    M2M100ForConditionalGeneration,
    NllbMoeConfig,
    NllbMoeForConditionalGeneration,
)

SIZE = {
    "vocab_size": 64,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 1,
    "decoder_start_token_id": 2,
    "dropout": 0.0,
    "attention_dropout": 0.0,
}
EXPERTS = {
    "num_experts": 2,
    "expert_capacity": 64,
    "encoder_sparse_step": 0,
    "decoder_sparse_step": 0,
}


def apart(kind: str, padding: int) -> float:
    torch.manual_seed(0)
    if kind == "m2m_100":
        model = M2M100ForConditionalGeneration(M2M100Config(**SIZE)).eval()
    else:
        model = NllbMoeForConditionalGeneration(NllbMoeConfig(**SIZE, **EXPERTS)).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, parameter.shape[-1] ** -0.5)
    source = torch.randint(5, 64, (1, 6), generator=torch.Generator().manual_seed(1))
    row = torch.randint(5, 64, (1, 8), generator=torch.Generator().manual_seed(2))
    row[:, :padding] = 1
    mask = (row != 1).long()
    with torch.no_grad():
        whole = model(
            input_ids=source, decoder_input_ids=row, decoder_attention_mask=mask, use_cache=False
        ).logits
        first = model(
            input_ids=source,
            decoder_input_ids=row[:, :-1],
            decoder_attention_mask=mask[:, :-1],
            use_cache=True,
        )
        step = model(
            input_ids=source,
            decoder_input_ids=row[:, -1:],
            decoder_attention_mask=mask,
            cache=first.cache,
            use_cache=True,
        ).logits
    return (step[:, -1] - whole[:, -1]).abs().max().item()


def main() -> dict[str, float]:
    kinds = ("m2m_100", "nllb-moe")
    return {
        **{kind: apart(kind, padding=3) for kind in kinds},
        **{f"{kind} without padding": apart(kind, padding=0) for kind in kinds},
    }


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:28s} {number:.2g}")
