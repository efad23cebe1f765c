"""GIT: a step behind a picture without `position_ids`.

The picture stands in front of the text and takes cache slots, but no positions: text counts from 0.
A step takes the number of slots in the cache as its position, so that it jumps by the picture's
length. The number is the largest difference of the step's logits from one forward.
"""

import torch
from transformers import GitConfig, GitForCausalLM

SIDE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
ROW = torch.randint(3, 64, (1, 10), generator=torch.Generator().manual_seed(1))
PICTURE = torch.randn(1, 3, 28, 28, generator=torch.Generator().manual_seed(2))


def main() -> dict[str, float]:
    torch.manual_seed(0)
    config = GitConfig(
        vocab_size=64,
        bos_token_id=1,
        eos_token_id=2,
        vision_config={**SIDE, "image_size": 28, "patch_size": 14},
        **SIDE,
    )
    model = GitForCausalLM(config).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, 0.3)
    found = {}
    with torch.no_grad():
        whole = model(ROW, pixel_values=PICTURE, use_cache=False).logits[:, -1]
        for name, positions in (("git", {}), ("explicit positions", {"position_ids": 9})):
            cache = model(ROW[:, :9], pixel_values=PICTURE, use_cache=True).cache
            given = {key: torch.tensor([[value]]) for key, value in positions.items()}
            step = model(ROW[:, 9:], cache=cache, use_cache=True, **given).logits[:, -1]
            found[name] = (step - whole).abs().max().item()
    return found


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:22s} {number:.2g}")
