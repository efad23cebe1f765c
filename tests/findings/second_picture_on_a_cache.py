"""A second picture fed on a filled cache, in one forward with the text around it.

Gemma 3 opens the mask among the placeholders of a picture by `token_type_ids`; on a filled cache it
takes them for those of the first tokens. Qwen2-VL gives a picture on a cache the positions of text.
The number is the largest difference from one forward over both pictures. LLaVA marks nothing and
counts placeholders as text.
"""

import torch
from transformers import AutoConfig, AutoModelForImageTextToText

IMAGE = 60
SIZE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
TEXT = {
    **SIZE,
    "vocab_size": 64,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EYE = {**SIZE, "image_size": 28, "patch_size": 14}
MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
CONFIGS = {
    "gemma3": {
        "text_config": {**TEXT, "sliding_window": 64},
        "vision_config": EYE,
        "mm_tokens_per_image": 4,
    },
    "qwen2_vl": {
        "text_config": {**TEXT, "rope_parameters": MROPE},
        "vision_config": {
            "depth": 1,
            "embed_dim": 32,
            "hidden_size": 32,
            "num_heads": 2,
            "patch_size": 4,
            "temporal_patch_size": 1,
        },
    },
    "llava": {
        "text_config": {**TEXT, "model_type": "llama"},
        "vision_config": {**EYE, "model_type": "clip_vision_model"},
    },
}
WORDS = torch.randint(3, 50, (1, 12), generator=torch.Generator().manual_seed(1))
ROW = torch.cat(
    [
        *(part for at in (0, 4) for part in (WORDS[:, at : at + 4], torch.full((1, 4), IMAGE))),
        WORDS[:, 8:],
    ],
    1,
)
CUT = 10


def seen(kind, start, stop):
    numbers = [number for number in (0, 1) if start <= 4 + 8 * number < stop]
    marks = (ROW == IMAGE).long()[:, start:stop]
    size = (16, 48) if kind == "qwen2_vl" else (1, 3, 28, 28)
    pixels = torch.cat(
        [torch.randn(size, generator=torch.Generator().manual_seed(number)) for number in numbers]
    )
    if kind == "qwen2_vl":
        return {
            "pixel_values": pixels,
            "image_grid_thw": torch.tensor([[1, 4, 4]] * len(numbers)),
            "mm_token_type_ids": marks,
        }
    return {"pixel_values": pixels, **({"token_type_ids": marks} if kind == "gemma3" else {})}


def apart(kind):
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        kind, image_token_id=IMAGE, image_token_index=IMAGE, **CONFIGS[kind]
    )
    model = AutoModelForImageTextToText.from_config(config).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, 0.3)
    end = ROW.shape[1]
    with torch.no_grad():
        whole = model(ROW, **seen(kind, 0, end), use_cache=False).logits[:, CUT:]
        cache = model(ROW[:, :CUT], **seen(kind, 0, CUT), use_cache=True).cache
        piece = model(ROW[:, CUT:], **seen(kind, CUT, end), cache=cache, use_cache=True).logits
    return (piece - whole).abs().max().item()


def main() -> dict[str, float]:
    return {kind: apart(kind) for kind in CONFIGS}


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:22s} {number:.2g}")
