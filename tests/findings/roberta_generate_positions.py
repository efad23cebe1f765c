"""The family of RoBERTa: generate() hands over positions from 0, the model itself counts from
`pad_token_id + 1`.

The number is the largest difference between the logits of generate() and of one forward over the
tokens that it returned; bert, the control, counts from 0.
"""

import torch
from transformers import AutoConfig, AutoModelForCausalLM

SIZE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "is_decoder": True,
}
SIZE |= {
    "max_position_embeddings": 64,
    "type_vocab_size": 1,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
TYPES = [
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
    "camembert",
    "data2vec-text",
    "xmod",
]


def apart(kind: str) -> float:
    torch.manual_seed(0)
    extra = {"default_language": "en_XX"} if kind == "xmod" else {}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZE, **extra)).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, parameter.shape[-1] ** -0.5)
    prompt = torch.randint(5, 64, (1, 8), generator=torch.Generator().manual_seed(1))
    options = {
        "max_new_tokens": 4,
        "min_new_tokens": 4,
        "do_sample": False,
        "output_logits": True,
        "return_dict_in_generate": True,
    }
    made = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), eos_token_id=None, **options
    )
    with torch.no_grad():
        whole = model(made.sequences, use_cache=False).logits[:, 7:-1]
    return (torch.stack(made.logits, 1) - whole).abs().max().item()


def main() -> dict[str, float]:
    return {kind: apart(kind) for kind in [*TYPES, "bert"]}


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:22s} {number:.2g}")
