"""Mamba: one token on a cache beside a 2D mask of all tokens, as every other model wants it.

The mask (1, P + 1, 1) multiplies a single hidden state (1, 1, W) and spreads it over P + 1 copies:
the step runs, the shape is right, the logits are not. The number is the largest logit difference
from the same steps without the mask.
"""

import torch
from transformers import AutoConfig, AutoModelForCausalLM

SIZE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "state_size": 4,
    "pad_token_id": 0,
}


def apart(kind: str) -> float:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZE)).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, 0.3)
    row = torch.randint(3, 64, (1, 10), generator=torch.Generator().manual_seed(1))
    last = []
    for masked in (False, True):
        with torch.no_grad():
            cache = model(row[:, :8], use_cache=True).cache
            for end in (9, 10):
                given = {"attention_mask": torch.ones(1, end, dtype=torch.long)} if masked else {}
                out = model(row[:, end - 1 : end], use_cache=True, cache=cache, **given)
        last.append(out.logits)
    return (last[0] - last[1]).abs().max().item()


def main() -> dict[str, float]:
    return {kind: apart(kind) for kind in ("mamba", "falcon_mamba")}


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:22s} {number:.2g}")
