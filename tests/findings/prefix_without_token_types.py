"""PaliGemma: text without `token_type_ids` under sdpa against eager.

The text config says `use_bidirectional_attention`, so that its layers say `is_causal = False`. The
mask builder leaves a plain causal mask out under sdpa, which then reads both ways; eager gets the
mask. The number is the largest difference between the two.
"""

import torch
from transformers import PaliGemmaConfig, PaliGemmaForConditionalGeneration

SIZE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
TEXT = {**SIZE, "vocab_size": 64, "num_key_value_heads": 1, "head_dim": 16, "model_type": "gemma"}
EYE = {
    **SIZE,
    "image_size": 28,
    "patch_size": 14,
    "projection_dim": 32,
    "model_type": "siglip_vision_model",
}
ROW = torch.randint(3, 60, (1, 10), generator=torch.Generator().manual_seed(1))


def main() -> dict[str, float]:
    torch.manual_seed(0)
    config = PaliGemmaConfig(
        vision_config=EYE, text_config=TEXT, projection_dim=32, image_token_index=62
    )
    model = PaliGemmaForConditionalGeneration(config).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, 0.3)
    logits = {}
    for attn in ("eager", "sdpa"):
        model.set_attn_implementation(attn)
        with torch.no_grad():
            logits[attn] = (
                model(ROW).logits,
                model(ROW, token_type_ids=torch.ones_like(ROW)).logits,
            )
    names = ("paligemma", "token types of text")
    return {
        name: (one - other).abs().max().item()
        for name, one, other in zip(names, logits["eager"], logits["sdpa"])
    }


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:22s} {number:.2g}")
