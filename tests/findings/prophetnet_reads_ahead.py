"""ProphetNet: logits depend on later tokens.

`get_predict_relative_pos_embeddings` permutes the axes of the relative bias in another order than
the scores have, so that a row takes its bias from other positions. The number is how far the logits
before position 8 move when the tokens from 8 on are replaced; bart, the control, gives 0.
"""

import torch
from transformers import AutoConfig, AutoModelForCausalLM

SIZE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_decoder_layers": 3,
    "num_decoder_attention_heads": 4,
    "decoder_ffn_dim": 48,
}
SIZE |= {
    "num_encoder_layers": 1,
    "num_encoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
BART = {
    "vocab_size": 64,
    "d_model": 32,
    "decoder_layers": 2,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
}


def leak(kind: str, fields: dict) -> float:
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, is_decoder=True, is_encoder_decoder=False, **fields)
    model = AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, 0.3)
    row = torch.randint(5, 64, (1, 16), generator=torch.Generator().manual_seed(1))
    other = row.clone()
    other[:, 8:] = row[:, 8:].flip(1)
    with torch.no_grad():
        return (
            (model(row, use_cache=False).logits - model(other, use_cache=False).logits)[:, :8]
            .abs()
            .max()
            .item()
        )


def main() -> dict[str, float]:
    return {"prophetnet": leak("prophetnet", SIZE), "bart": leak("bart", BART)}


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:22s} {number:.2g}")
