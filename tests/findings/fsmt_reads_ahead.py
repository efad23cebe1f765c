"""FSMT builds its decoder's causal mask only without a cache, and only beside `input_ids`.

A forward of several tokens with `use_cache=True`, which is the default, reads later tokens, and so
does one with `encoder_outputs` in the place of the encoder's ids.
The number is how far logits move in front of a token that is changed.
"""

import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    FSMTConfig,
    FSMTForConditionalGeneration,
)

SIZE = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
}
SOURCE, ROW = torch.randint(5, 60, (2, 1, 10), generator=torch.Generator().manual_seed(1))


def fsmt() -> torch.nn.Module:
    return grown(
        FSMTForConditionalGeneration(
            FSMTConfig(
                langs=["en", "de"],
                src_vocab_size=64,
                tgt_vocab_size=64,
                pad_token_id=1,
                bos_token_id=0,
                eos_token_id=2,
                **SIZE,
            )
        )
    )


def bart() -> torch.nn.Module:
    return grown(BartForConditionalGeneration(BartConfig(vocab_size=64, **SIZE)))


def grown(model: torch.nn.Module) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        if weight.ndim > 1:
            weight.data.normal_(0, weight.shape[-1] ** -0.5, generator=generator)
    return model.eval()


def moved(model: torch.nn.Module, encoded: bool = False, **call: bool) -> float:
    changed = ROW.clone()
    changed[:, 6] = 5 + (ROW[:, 6] - 4) % 55
    with torch.no_grad():
        states = model.get_encoder()(SOURCE)[0]
        given = {"encoder_outputs": (states,)} if encoded else {"input_ids": SOURCE}
        first, second = (
            model(**given, decoder_input_ids=row, **call).logits for row in (ROW, changed)
        )
    return float((first - second)[:, :6].abs().max())


def main() -> dict[str, float]:
    one, other = fsmt(), bart()
    return {
        "fsmt": moved(one),
        "fsmt, encoder_outputs without a cache": moved(one, encoded=True, use_cache=False),
        "fsmt without a cache": moved(one, use_cache=False),
        "bart": moved(other),
        "bart, encoder_outputs without a cache": moved(other, encoded=True, use_cache=False),
    }


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:40s} {number:.2g}")
