"""Funnel Transformer pools pairs of tokens without a look at the mask.

What stands under the padding enters the pooled queries, and so the logits of real tokens. The number
is how far they move when another token stands there. A row of fewer tokens than poolings raises, as
its cut leaves nothing to shift by: 1 there.
"""

import torch
from transformers import BertConfig, BertForMaskedLM, FunnelConfig, FunnelForMaskedLM

ROW = torch.randint(5, 60, (1, 12), generator=torch.Generator().manual_seed(1))


def funnel() -> torch.nn.Module:
    config = FunnelConfig(
        vocab_size=64,
        block_sizes=[1, 1],
        d_model=32,
        n_head=4,
        d_head=8,
        d_inner=48,
        num_decoder_layers=1,
    )
    return FunnelForMaskedLM(config).eval()


def bert() -> torch.nn.Module:
    config = BertConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
    )
    return BertForMaskedLM(config).eval()


def moved_by_padding(model: torch.nn.Module) -> float:
    mask = torch.tensor([[1] * 12 + [0] * 2])
    with torch.no_grad():
        first, second = (
            model(torch.cat([ROW, torch.full((1, 2), token)], 1), attention_mask=mask).logits
            for token in (0, 7)
        )
    return float((first - second)[:, :12].abs().max())


def raises(model: torch.nn.Module) -> float:
    try:
        with torch.no_grad():
            model(ROW[:, :2])
    except (RuntimeError, IndexError):
        return 1.0
    return 0.0


def main() -> dict[str, float]:
    torch.manual_seed(0)
    one, other = funnel(), bert()
    return {
        "funnel": moved_by_padding(one),
        "funnel, two tokens": raises(one),
        "bert": moved_by_padding(other),
        "bert, two tokens": raises(other),
    }


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:28s} {number:.2g}")
