"""A cached step reads tokens that the 2D mask hides: the mask is dropped as soon as there is a
cache.

The number is how far the last of eight tokens' logits move when the first three, which the mask
hides, are replaced: fed on a cache of the seven before it, and (the control) in one forward over
all eight. Bart is right in both.
"""

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

WIDTHS = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
}
WIDTHS |= {
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "vocab_size": 64,
    "max_position_embeddings": 64,
}
PROPHETNET = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_decoder_layers": 2,
    "num_decoder_attention_heads": 4,
}
PROPHETNET |= {
    "decoder_ffn_dim": 48,
    "num_encoder_layers": 2,
    "num_encoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
}
PROPHETNET |= {
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "is_decoder": True,
    "is_encoder_decoder": False,
}
LED = {
    **WIDTHS,
    "attention_window": 8,
    "max_encoder_position_embeddings": 64,
    "max_decoder_position_embeddings": 64,
}
FSMT = {
    **WIDTHS,
    "langs": ["en", "de"],
    "src_vocab_size": 64,
    "tgt_vocab_size": 64,
    "tie_word_embeddings": False,
}
KINDS = {"prophetnet": PROPHETNET, "led": LED, "fsmt": FSMT, "bart": WIDTHS}
HIDDEN, LENGTH = 3, 8


def built(kind: str) -> torch.nn.Module:
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **KINDS[kind])
    auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    model = auto.from_config(config).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, 0.2)
    return model


def last_logits(model: torch.nn.Module, row: torch.Tensor, pieces: tuple[int, ...]) -> torch.Tensor:
    mask = torch.ones_like(row)
    mask[:, :HIDDEN] = 0
    cache, start = None, 0
    for size in pieces:
        stop = start + size
        given = {"past_key_values": cache, "use_cache": len(pieces) > 1}
        if model.config.is_encoder_decoder:
            encoder = torch.arange(5, 13)[None]
            given |= {
                "input_ids": encoder,
                "decoder_input_ids": row[:, start:stop],
                "decoder_attention_mask": mask[:, :stop],
            }
        else:
            given |= {"input_ids": row[:, start:stop], "attention_mask": mask[:, :stop]}
        with torch.no_grad():
            output = model(**given)
        cache, start = output.past_key_values, stop
    return output.logits[:, -1]


def moved(kind: str, pieces: tuple[int, ...]) -> float:
    model = built(kind)
    row = torch.randint(5, 64, (1, LENGTH), generator=torch.Generator().manual_seed(1))
    other = row.clone()
    other[:, :HIDDEN] = (row[:, :HIDDEN] + 7) % 59 + 5
    return (last_logits(model, row, pieces) - last_logits(model, other, pieces)).abs().max().item()


def main() -> dict[str, float]:
    step = {kind: moved(kind, (LENGTH - 1, 1)) for kind in KINDS}
    return step | {f"{kind} in one forward": moved(kind, (LENGTH,)) for kind in KINDS}


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:26s} {number:.2g}")
