"""Phi-4 multimodal: a picture under sdpa against eager.

The attention of the vision encoder says `is_causal = True`. A mask that hides nothing is left out,
and sdpa then reads the patches causally; eager reads all of them. The number is the largest
difference between the two.
"""

import torch
from transformers import Phi4MultimodalConfig, Phi4MultimodalForCausalLM

IMAGE, AUDIO = 60, 61
SIZE = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
VISION = {
    **SIZE,
    "num_hidden_layers": 2,
    "image_size": 28,
    "crop_size": 28,
    "patch_size": 7,
    "image_token_id": IMAGE,
}
SOUND = {
    **SIZE,
    "num_blocks": 2,
    "ext_pw_out_channel": 32,
    "depthwise_separable_out_channel": 32,
    "nemo_conv_channels": 16,
    "audio_token_id": AUDIO,
    "input_size": 80,
}
TEXT = {
    **SIZE,
    "vocab_size": 64,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WORDS = torch.randint(3, 50, (1, 10), generator=torch.Generator().manual_seed(1))
PIXELS = torch.randn(1, 2, 3, 28, 28, generator=torch.Generator().manual_seed(2))


def main() -> dict[str, float]:
    torch.manual_seed(0)
    config = Phi4MultimodalConfig(vision_config=VISION, audio_config=SOUND, **TEXT)
    model = Phi4MultimodalForCausalLM._from_config(config, attn_implementation="eager").eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, 0.3)
    row = torch.cat([WORDS[:, :3], torch.full((1, 13), IMAGE), WORDS[:, 3:]], 1)
    seen = {
        "image_pixel_values": PIXELS,
        "image_sizes": torch.tensor([[28, 28]]),
        "image_attention_mask": torch.ones(1, 2, 4, 4, dtype=torch.bool),
    }
    vision = model.model.embed_tokens_extend.image_embed.img_processor
    logits = {}
    with torch.no_grad():
        for name, attn, causal in (
            ("eager", "eager", True),
            ("sdpa", "sdpa", True),
            ("not causal", "sdpa", False),
        ):
            model.set_attn_implementation(attn)
            for layer in vision.encoder.layers:
                layer.self_attn.is_causal = causal
            logits[name] = model(row, **seen, use_cache=False).logits
    return {
        name: (logits[name] - logits["eager"]).abs().max().item() for name in ("sdpa", "not causal")
    }


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:22s} {number:.2g}")
