"""Two documents in one row, positions restarting, no mask, no cache: where the library isolates,
these types do not.

`create_causal_mask` recognises packed rows by their `position_ids`, but the models below never hand
the positions on to it. The number is how far the second document's logits move when the first
document is replaced; llama, the control, gives 0.
"""

import torch
from transformers import AutoConfig, AutoModelForCausalLM

SIZE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
SIZE |= {"max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
MOE = {"num_key_value_heads": 2, "head_dim": 8, "num_experts_per_tok": 2, "sliding_window": 64}
ENCODER = SIZE | {"is_decoder": True, "type_vocab_size": 1}
TYPES = {
    "afmoe": SIZE | MOE | {"num_experts": 4, "moe_intermediate_size": 16, "num_dense_layers": 1},
    "gpt_oss": SIZE | MOE | {"num_local_experts": 4},
    "opt": dict(SIZE, ffn_dim=48, word_embed_proj_dim=32),
    "biogpt": SIZE,
    "xglm": {
        "vocab_size": 64,
        "d_model": 32,
        "num_layers": 2,
        "attention_heads": 4,
        "ffn_dim": 48,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
    },
    "bert": ENCODER,
    "bert-generation": ENCODER,
    "camembert": ENCODER,
    "data2vec-text": ENCODER,
    "electra": ENCODER | {"embedding_size": 32},
    "ernie": ENCODER | {"task_type_vocab_size": 1},
    "megatron-bert": ENCODER,
    "rembert": ENCODER | {"input_embedding_size": 32, "output_embedding_size": 32},
    "roberta": ENCODER,
    "roberta-prelayernorm": ENCODER,
    "roc_bert": ENCODER | {"enable_pronunciation": False, "enable_shape": False},
    "xlm-roberta": ENCODER,
    "xlm-roberta-xl": ENCODER,
    "xmod": ENCODER | {"default_language": "en_XX"},
    "big_bird": ENCODER | {"attention_type": "original_full"},
}
CONTROL = {"llama": SIZE | {"num_key_value_heads": 2}}


def leak(kind: str, fields: dict) -> float:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **fields)).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, parameter.shape[-1] ** -0.5)
    a, other, b = torch.randint(5, 64, (3, 7), generator=torch.Generator().manual_seed(1))
    positions = torch.cat([torch.arange(7), torch.arange(7)])[None] + 1
    with torch.no_grad():
        rows = [torch.cat([first, b])[None] for first in (a, other)]
        one, two = (
            model(row, position_ids=positions, use_cache=False).logits[:, 7:] for row in rows
        )
    return (one - two).abs().max().item()


def main() -> dict[str, float]:
    return {kind: leak(kind, fields) for kind, fields in (TYPES | CONTROL).items()}


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:22s} {number:.2g}")
