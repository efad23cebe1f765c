"""generate() of an encoder-decoder model whose prompts are the encoder's."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import transformers

from attncheck.core.settings import Settings
from attncheck.model.subject import Subject
from attncheck.targets.amplify import amplify
from attncheck.targets.load import load
from attncheck.triage.encoder_call import encoder_case, reads_prompts

LAYERS = ("layers", "attention_heads")
ROWS = ((9, 12, 15, 18, 21, 24, 27), (10, 11, 13))


@pytest.fixture(scope="module")
def bart() -> Subject:
    torch.manual_seed(0)
    size = {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in LAYERS}
    config = transformers.BartConfig(
        vocab_size=64, d_model=32, encoder_ffn_dim=64, decoder_ffn_dim=64, **size
    )
    model = transformers.BartForConditionalGeneration(config)
    amplify(model, 0)
    return Subject.of(model, dtype="float64")


def case(subject: Subject) -> Any:
    return encoder_case(subject, ROWS, "right", pad=1, new=5, name="as reported")


def test_a_padded_batch_of_a_healthy_model_writes_what_each_sequence_writes(bart: Subject) -> None:
    assert reads_prompts(bart)
    assert not case(bart).beyond
    assert case(bart).positions == 10


def test_padding_that_cross_attention_reads_is_seen(
    bart: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = bart.model.model.decoder
    usual = decoder.forward

    def forward(*given: Any, encoder_attention_mask: Any = None, **named: Any) -> Any:
        return usual(*given, **named)

    monkeypatch.setattr(decoder, "forward", partial(forward))
    assert case(bart).beyond


def test_a_decoder_reads_its_prompts_itself() -> None:
    assert not reads_prompts(load("builtin:gqa", Settings()))
