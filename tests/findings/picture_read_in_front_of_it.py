"""Mllama: tokens in front of a picture, and a row of text beside one with a picture.

A token that may read no picture has nothing but masked states in the cross attention. Its mask row
is set to zero there, which makes a mean over all states, and only the MLP behind the cross
attention is switched off for it; the output of the attention is added. The number is by how much
another picture moves the logits in front of it, and how far a row of text is from itself alone.
With the attention's output switched off as well, both are zero.
"""

import torch
from transformers import MllamaConfig, MllamaForConditionalGeneration

IMAGE = 62
TEXT = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "cross_attention_layers": [1],
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_global_layers": 1,
    "attention_heads": 4,
    "image_size": 28,
    "patch_size": 14,
    "max_num_tiles": 1,
    "vision_output_dim": 64,
    "intermediate_layers_indices": [0],
    "supported_aspect_ratios": [[1, 1]],
}
WORDS = torch.randint(3, 50, (1, 10), generator=torch.Generator().manual_seed(1))
AT = 4
ROW = torch.cat([WORDS[:, :AT], torch.tensor([[IMAGE]]), WORDS[:, AT:-1]], 1)


def seen(seed):
    pixels = torch.randn(1, 1, 1, 3, 28, 28, generator=torch.Generator().manual_seed(seed))
    mask = torch.zeros(1, 10, 1, 1, dtype=torch.long)
    mask[:, AT:] = 1
    return {
        "pixel_values": pixels,
        "aspect_ratio_ids": torch.tensor([[1]]),
        "aspect_ratio_mask": torch.ones(1, 1, 1, dtype=torch.long),
        "cross_attention_mask": mask,
    }


def model_of():
    torch.manual_seed(0)
    model = MllamaForConditionalGeneration(
        MllamaConfig(vision_config=VISION, text_config=TEXT, image_token_index=IMAGE)
    ).eval()
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, 0.3)
        elif "gate" in name:
            parameter.data.fill_(0.5)
    return model


def switched_off(model):
    """The output of the cross attention too is zero where a token may read no picture."""
    layer = model.model.language_model.layers[1]
    usual, inner = layer.forward, layer.cross_attn.forward

    def forward(*args, **kwargs):
        visible = kwargs.get("full_text_row_masked_out_mask")

        def attention(*given, **named):
            out, weights = inner(*given, **named)
            return (out if visible is None else out * visible[:, 0]), weights

        layer.cross_attn.forward = attention
        return usual(*args, **kwargs)

    layer.forward = forward


def numbers(model):
    with torch.no_grad():
        one, other = (model(ROW, **seen(seed), use_cache=False).logits[:, :AT] for seed in (1, 2))
        text = {
            name: torch.cat([value, torch.zeros_like(value)]) for name, value in seen(1).items()
        }
        beside = model(torch.cat([ROW, WORDS]), **text, use_cache=False).logits[1]
        return (one - other).abs().max().item(), (
            beside - model(WORDS, use_cache=False).logits[0]
        ).abs().max().item()


def main() -> dict[str, float]:
    model, names = model_of(), ("in front of the picture", "a row of text beside")
    found = dict(zip(names, numbers(model)))
    switched_off(model)
    return found | {f"{name}, switched off": number for name, number in zip(names, numbers(model))}


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:40s} {number:.2g}")
