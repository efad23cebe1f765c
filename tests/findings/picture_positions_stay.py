"""Qwen-VL: steps over text on a cache, after another conversation that held a picture; and a step
behind a picture beside a full-length 2D mask.

`rope_deltas`, by which a picture moves the positions behind it, stays on the module when the next
conversation is text: its steps are moved by it too. With a 2D mask the positions of a step are made
for all cached tokens instead of the new ones, and the call raises. The number is the largest
difference from the same call before; infinite where it raises.
"""

import torch
from transformers import AutoConfig, AutoModelForImageTextToText

IMAGE = 60
TEXT = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]},
}
VISION = {
    "depth": 1,
    "num_heads": 2,
    "patch_size": 4,
    "temporal_patch_size": 1,
    "spatial_merge_size": 2,
}
WIDTHS = {
    "qwen2_vl": {"embed_dim": 32, "hidden_size": 32},
    "qwen2_5_vl": {
        "hidden_size": 32,
        "out_hidden_size": 32,
        "intermediate_size": 48,
        "window_size": 16,
        "fullatt_block_indexes": [0],
    },
}
GRID = torch.tensor([[1, 4, 6]])
PIXELS = torch.randn(24, 48, generator=torch.Generator().manual_seed(2))
WORDS = torch.randint(3, 50, (1, 10), generator=torch.Generator().manual_seed(1))
WITH_PICTURE = torch.cat([WORDS[:, :3], torch.full((1, 6), IMAGE), WORDS[:, 3:]], 1)
SEEN = {
    "pixel_values": PIXELS,
    "image_grid_thw": GRID,
    "mm_token_type_ids": (WITH_PICTURE == IMAGE).long()[:, :-1],
}


def model_of(kind):
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        kind, text_config=TEXT, vision_config={**VISION, **WIDTHS[kind]}, image_token_id=IMAGE
    )
    model = AutoModelForImageTextToText.from_config(config).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, 0.3)
    return model


def steps(model, row, masked=False, **first):
    cache = model(row[:, :-1], use_cache=True, **first).cache
    mask = {"attention_mask": torch.ones_like(row)} if masked else {}
    return model(row[:, -1:], cache=cache, use_cache=True, **mask).logits


def main() -> dict[str, float]:
    found = {}
    for kind in WIDTHS:
        model = model_of(kind)
        with torch.no_grad():
            before = steps(model, WORDS)
            found[f"{kind} one forward over text"] = (
                -(model(WORDS).logits[:, -1:] - before).abs().max().item()
            )
            behind = steps(model, WITH_PICTURE, **SEEN)
            found[kind] = (steps(model, WORDS) - before).abs().max().item()
            try:
                masked = steps(model, WITH_PICTURE, masked=True, **SEEN)
                found[f"{kind} beside a 2D mask"] = (masked - behind).abs().max().item()
            except RuntimeError:
                found[f"{kind} beside a 2D mask"] = float("inf")
    return {name: abs(number) for name, number in found.items()}


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:34s} {number:.2g}")
