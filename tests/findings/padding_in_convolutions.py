"""ConvBERT, MobileBERT, Nystromformer: padding enters convolutions, which know no mask.

ConvBERT convolves spans, Nystromformer values; MobileBERT joins each embedding with its neighbours'.

The number is the largest logit difference of a row between its own forward and a batch in which it
is padded on the left.
"""

import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    ConvBertConfig,
    ConvBertForMaskedLM,
    MobileBertConfig,
    MobileBertForMaskedLM,
    NystromformerConfig,
    NystromformerForMaskedLM,
)

SIZE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}


def apart(model: torch.nn.Module) -> float:
    torch.manual_seed(0)
    model.eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, parameter.shape[-1] ** -0.5)
    row = torch.randint(5, 64, (1, 8), generator=torch.Generator().manual_seed(1))
    padded = torch.cat([torch.full((1, 4), 7), row], 1)
    mask = torch.tensor([[0] * 4 + [1] * 8])
    positions = torch.tensor([[0] * 4 + [*range(8)]])
    with torch.no_grad():
        alone = model(row).logits
        batched = model(padded, attention_mask=mask, position_ids=positions).logits[:, 4:]
    return (batched - alone).abs().max().item()


def main() -> dict[str, float]:
    return {
        "convbert": apart(ConvBertForMaskedLM(ConvBertConfig(**SIZE, embedding_size=32))),
        "mobilebert": apart(
            MobileBertForMaskedLM(
                MobileBertConfig(**SIZE, embedding_size=32, intra_bottleneck_size=32)
            )
        ),
        "nystromformer": apart(
            NystromformerForMaskedLM(
                NystromformerConfig(**SIZE, num_landmarks=8, segment_means_seq_len=8)
            )
        ),
        "bert": apart(BertForMaskedLM(BertConfig(**SIZE))),
    }


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{name:28s} {number:.2g}")
